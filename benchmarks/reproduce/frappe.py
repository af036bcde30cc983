# SPDX-License-Identifier: Apache-2.0
"""Frappe, as the BARS benchmark trains on it (Frappe_x1, https://openbenchmark.github.io/BARS).

The folder holds frappe_train, frappe_valid and frappe_test, each .parquet, with the columns below.

Protocol of all models: vectors of 10 numbers, batches of 4096, Adam at 0.001, gradients clipped at
a norm of 10, validation by AUC after each epoch; without a better one the learning rate falls to a
tenth, and after two in a row training ends with the best weights. Every value has a row of its own.
L2 (`l2` below) is added to the gradient of every row of every table in every step, as it is by a
loss with that term, so rows that a batch does not name shrink and Adam's moments see it.
"""

from __future__ import annotations

from collections.abc import Mapping
from time import perf_counter
from typing import Any, NamedTuple

import numpy as np

import sparsetrain as st

LABEL = "label"
COLUMNS = (
    *("user", "item", "daytime", "weekday", "isweekend", "homework"),
    *("cost", "weather", "country", "city"),
)
EPOCHS, BATCH, LR, CLIP = 100, 4096, 1e-3, 10.0


class Setting(NamedTuple):
    """A model of the benchmark: its options, its L2, and the test scores published."""

    kind: str
    options: Mapping[str, Any]
    l2: float
    published: Mapping[str, float]


class Prepared(NamedTuple):
    """The path of each split, and an encoder with a row for each value of the training data."""

    paths: Mapping[str, str]
    encoder: st.data.Encoder


SCORES = ("auc", "logloss")
DEEP = {"dim": 10, "batch_norm": True}
WIDE = (400, 400, 400)
SETTINGS = {
    "lr": Setting("lr", {}, 0.0, {"auc": 0.9356, "logloss": 0.3076}),
    "fm": Setting("fm", {"dim": 10}, 0.0, {"auc": 0.9671, "logloss": 0.2065}),
    "fwfm": Setting("fwfm", {"dim": 10}, 0.0, {}),
    "dlrm": Setting(
        "dlrm",
        {"interaction": "concat", "bottom": (), "top": WIDE, "dropout": 0.4, **DEEP},
        0.1,
        {"auc": 0.9840, "logloss": 0.1444},
    ),
    "deepfm": Setting(
        "deepfm",
        {"hidden": WIDE, "dropout": 0.2, **DEEP},
        0.05,
        {"auc": 0.98395, "logloss": 0.1495},
    ),
    "dcnv2": Setting(
        "dcnv2",
        {"cross_layers": 4, "hidden": WIDE, "dropout": 0.4, **DEEP},
        0.05,
        {"auc": 0.98382, "logloss": 0.1520},
    ),
    # With DeepFM's options, which are not those that the benchmark tuned for each of them.
    **{
        kind: Setting(kind, {"hidden": WIDE, "dropout": 0.2, **DEEP}, 0.05, {})
        for kind in ("widedeep", "dcn", "xdeepfm", "autoint", "finalmlp")
    },
}


def prepare(folder: str) -> Prepared:
    """Learn the encoding of the training data."""
    paths = {split: f"{folder}/frappe_{split}.parquet" for split in ("train", "valid", "test")}
    schema = st.data.Schema(label=LABEL, categories=COLUMNS)
    fit = st.data.Encoder.fit
    return Prepared(paths, fit(paths["train"], schema=schema, min_count=1, treat_as="raw"))


def model_of(setting: Setting, encoder: st.data.Encoder) -> Any:
    """Make the model of a setting."""
    make = st.models.MODELS[setting.kind]
    return make(encoder.rows, num_dense=0, names=encoder.columns, **setting.options)


def start_(trainer: st.Trainer, seed: int) -> None:
    """Draw the tables as the benchmark does, normal with a deviation of 0.0001.

    The decay of larger vectors would rule Adam's second moments for a thousand steps.
    """
    rng, arrays = np.random.default_rng(seed), trainer.state_dict()
    for name, array in arrays.items():
        if name.startswith("embeddings.") and ":" not in name:
            arrays[name] = rng.normal(0, 1e-4, array.shape).astype(array.dtype)
    trainer.load_state_dict(arrays)


def train(setting: Setting, prepared: Prepared, seed: int) -> dict[str, Any]:
    """Train by the protocol; return test scores, epochs, seconds and rows/s."""
    begin, (paths, encoder) = perf_counter(), prepared
    decay = st.optim.ParamGroup("embeddings.*", weight_decay=setting.l2)
    optimizer = st.optim.adam(LR, mode="exact", clip_norm=CLIP, groups=[decay])
    trainer = st.Trainer(model_of(setting, encoder), optimizer, encoder=encoder, seed=seed)
    start_(trainer, seed)
    history = trainer.fit(
        paths["train"],
        validation=paths["valid"],
        epochs=EPOCHS,
        batch_size=BATCH,
        progress=None,
        early_stopping=st.EarlyStopping(monitor="auc", patience=2),
        reduce_lr=st.ReduceLROnPlateau(factor=0.1, patience=1),
    )
    seconds = perf_counter() - begin
    found = trainer.evaluate(paths["test"])
    return {
        **{name: float(found[name]) for name in ("auc", "logloss")},
        "epochs": len(history["epochs"]),
        "seconds": seconds,
        "rows_per_s": float(history["rows_per_s"]),
    }
