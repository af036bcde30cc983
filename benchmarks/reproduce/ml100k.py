# SPDX-License-Identifier: Apache-2.0
"""MovieLens 100K: choices as RecBole ranks them, ratings as Surprise scores them.

The folder holds ml-100k.inter, RecBole's atomic file of 943 users, 1,682 items, 100,000 ratings.

Protocol of rankings (https://recbole.io): of each user 80 % of the items are trained on, 10 %
validate, 10 % test, drawn at random; all items are ranked but those of the other parts. Vectors of
64 numbers, batches of 2048, Adam; training ends after 10 epochs without a better NDCG@10. Options
are RecBole's defaults. Published of BPR are three of its own pages, from 0.277 to 0.292; of ItemKNN
a comparison with RecBole (https://arxiv.org/abs/2407.13531).

Protocol of MF (https://surpriselib.com, SVD): RMSE of five folds, vectors of 100 numbers. There the
decay of rows is 0.02 with SGD at 0.005; here Adam takes `EPOCHS` over batches of 128.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from time import perf_counter
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

import sparsetrain as st

EPOCHS, FOLDS = 3, 5


class Setting(NamedTuple):
    """A model with its options, and what was published."""

    kind: str
    options: Mapping[str, Any]
    published: Mapping[str, float]


SCORES = ("ndcg@10", "recall@10", "rmse")
SETTINGS = {
    "bpr": Setting(
        "bpr", {"dim": 64, "history": "history"}, {"ndcg@10": 0.285, "recall@10": 0.245}
    ),
    "lightgcn": Setting("lightgcn", {"layers": 2, "decay": 1e-5, "history": "history"}, {}),
    "ease": Setting("ease", {"l2": 250}, {}),
    "item_knn": Setting("item_knn", {"neighbours": 100}, {"ndcg@10": 0.2674}),
    "pop": Setting("pop", {}, {}),
    "mf": Setting("mf", {"dim": 100}, {"rmse": 0.934}),
}


def prepare(folder: str) -> st.data.Interactions:
    """Read the log; numbers of items are faster to encode than their text."""
    log = st.data.Interactions.read(f"{folder}/ml-100k.inter")
    return replace(log, item=log.item.cast(pa.string()).cast(pa.int64()))


def train(setting: Setting, log: st.data.Interactions, seed: int) -> dict[str, Any]:
    """Train by the protocol; return test scores, epochs, seconds and rows/s."""
    begin = perf_counter()
    found = (_rated if setting.kind == "mf" else _ranked)(setting, log, seed)
    nothing = dict.fromkeys(SCORES, np.nan)
    return {**nothing, **found, "seconds": perf_counter() - begin}


def _ranked(setting: Setting, log: st.data.Interactions, seed: int) -> dict[str, Any]:
    split = log.split_random(0.1, 0.1, seed=seed, each="item")
    if setting.kind == "lightgcn":
        options = {**setting.options, "interactions": len(split.train)}
        setting = setting._replace(options=options)
    trainer = _trainer(setting, split.encoder(), st.optim.adam(1e-3), seed)
    history = trainer.fit(
        split.train,
        validation=split.valid,
        epochs=300 if trainer.trains else 1,
        batch_size=2048,
        progress=None,
        early_stopping=st.EarlyStopping(monitor="ndcg@10", patience=10),
    )
    scores = trainer.evaluate(split.test)
    return {
        **{name: scores[name] for name in ("ndcg@10", "recall@10")},
        "epochs": len(history["epochs"]),
        "rows_per_s": history["rows_per_s"],
    }


def _rated(setting: Setting, log: st.data.Interactions, seed: int) -> dict[str, Any]:
    table = log.table().select(["user", "item", "rating"])
    schema = st.data.Schema(categories=("user", "item"), labels={"rating": "real"})
    encoder = st.data.Encoder.fit(table, schema=schema, min_count=1, treat_as="raw")
    fold = np.random.default_rng(seed).permutation(len(log)) % FOLDS
    scores = []
    for number in range(FOLDS):
        own = pa.array(fold == number)
        decay = st.optim.ParamGroup("*", weight_decay=5e-4)
        trainer = _trainer(setting, encoder, st.optim.adam(5e-3, mode="lazy", groups=[decay]), seed)
        rows = table.filter(pa.array(fold != number))
        history = trainer.fit(rows, epochs=EPOCHS, batch_size=128, progress=None)
        scores.append(trainer.evaluate(table.filter(own))["rmse"])
    return {"rmse": np.mean(scores), "epochs": EPOCHS, "rows_per_s": history["rows_per_s"]}


def _trainer(setting: Setting, encoder: Any, optimizer: Any, seed: int) -> st.Trainer:
    rows = dict(zip(encoder.columns, encoder.rows, strict=True))
    model = st.models.MODELS[setting.kind](rows, **setting.options)
    return st.Trainer(model, optimizer, encoder=encoder, seed=seed)
