# SPDX-License-Identifier: Apache-2.0
"""Saved models of every kind, an archive each: it loads, predicts as it did, and goes on training.

`run/` beside this file is of the first version, and stays as it was written.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pandas as pd

import sparsetrain as st
from sparsetrain.sklearn import ClickClassifier
from sparsetrain.training.predictor import Predictor
from tests import small_dlrm
from tests.models import test_named_features as named
from tests.serving import logs

ARCHIVES = Path(__file__).parent / "archives"


def _of_schema(schema: st.data.Schema) -> tuple[st.Trainer, Any]:
    return logs.trained(schema), logs.frame(logs.rows_of(30, 4), schema)


def _named(cls: type[st.models.Model], **options: Any) -> tuple[st.Trainer, pd.DataFrame]:
    rows = named.frame()
    return named.trainer_for(cls, rows, options), rows.head(40)


def _dlrm(kind: str, optimizer: st.optim.Optimizer, **options: Any) -> tuple[st.Trainer, Any]:
    encoder = None if "pooling" in small_dlrm.KINDS[kind] else small_dlrm.encoder()
    model = small_dlrm.model(kind)
    rows = small_dlrm.raw_rows(40) if encoder else [small_dlrm.batch(40, kind=kind)]
    return st.Trainer(model, optimizer, encoder=encoder, seed=5, target="cpu", **options), rows


KINDS: dict[str, Callable[[], tuple[st.Trainer, Any]]] = {
    "derived-linear-flags": lambda: _of_schema(logs.SCHEMA),
    "lists-weights-two-labels": lambda: _of_schema(logs.BAGS),
    "shared-tables": lambda: _named(st.models.DIN, top=[8], attention=[8]),
    "several-labels": lambda: _named(st.models.MMoE, dim=4, expert=[8], tower=[8]),
    "ratings": lambda: _named(st.models.MatrixFactorization),
    "ranking": lambda: _named(st.models.SASRec),
    "bfloat16-tables": lambda: _dlrm("bfloat16", st.optim.rowwise_adagrad(0.05)),
    "exact-adam-decay": lambda: _dlrm(
        "single", st.optim.adam(0.01, weight_decay=0.01, mode="exact")
    ),
    "several-parts": lambda: _dlrm("single", st.optim.adagrad(0.05), parallel=st.parallel.local(2)),
}


IN_PARTS = "several-parts"
ONLY_PREDICTS = "int8-for-prediction"
ESTIMATOR = "estimator"
NAMES = [*KINDS, ONLY_PREDICTS, ESTIMATOR]
# Those whose step is compiled soon, or for other tests too.
GO_ON_QUICKLY = ("derived-linear-flags", "exact-adam-decay", "bfloat16-tables", "ratings")


def record(name: str) -> list[float]:
    """Write the archive of one kind, and return some of its predictions."""
    with TemporaryDirectory() as folder:
        trained, rows = _written(name, f"{folder}/{name}")
        shutil.make_archive(str(ARCHIVES / name), "zip", folder)
    return predictions(trained, rows)


def _written(name: str, folder: str) -> tuple[Predictor, Any]:
    if name == ONLY_PREDICTS:
        trainer, rows = KINDS["exact-adam-decay"]()
        quantized = trainer.quantized()
        quantized.save(folder)
        return quantized, rows
    if name == ESTIMATOR:
        rows = named.frame()[["user", "item", "rating"]]
        options = {"bottom": (4,), "top": (8,)}
        model = ClickClassifier(dim=4, model_options=options, random_state=3, target="cpu")
        model.fit(rows, named.frame()["click"]).save(folder)
        return model.trainer_, rows
    trainer, rows = KINDS[name]()
    run = st.Run(folder, keep=1)
    trainer.fit(rows, batch_size=16, epochs=2, run=run, progress=None)
    return trainer, rows


def rows_of(name: str) -> Any:
    """Return the rows that a kind was trained on."""
    if name == ESTIMATOR:
        return named.frame()[["user", "item", "rating"]]
    return KINDS["exact-adam-decay" if name == ONLY_PREDICTS else name]()[1]


def unpacked(name: str, folder: Path) -> Path:
    """Unpack a kind's archive, and return the folder of the run."""
    shutil.unpack_archive(ARCHIVES / f"{name}.zip", folder)
    return folder / name


def predictions(trained: Predictor, rows: Any) -> list[float]:
    """Return what a model says of ten rows: probabilities, numbers, or scores of items."""
    few = rows[:1] if isinstance(rows, list) else _first(rows)
    if not trained.model.all_labels:
        return np.ravel(trained.recommend(few, 3)[1]).tolist()
    found = trained.predict(few)
    columns = found.values() if isinstance(found, dict) else [found]
    return np.concatenate([np.ravel(column) for column in columns]).tolist()


def _first(rows: Any) -> Any:
    if isinstance(rows, dict):
        return {name: values[:10] for name, values in rows.items()}
    return rows.head(10) if isinstance(rows, pd.DataFrame) else rows.slice(0, 10)
