# SPDX-License-Identifier: Apache-2.0
"""Small DLRMs, batches for them, and one compilation for all tests of a run.

A program does not depend on weights or batch size, so trainers of one kind share it. Those with
updates are kept by the layout of the update.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import numpy as np

import sparsetrain as st
from sparsetrain.data import Batch, Ragged

ROWS = [50, 20, 7]
FULL_ROWS = [7 * feature + 40 for feature in range(26)]
NUM_DENSE = 13
# Kind -> what of the model is not as usual.
KINDS = {
    "single": {},
    "sum": {"pooling": "sum"},
    "mean": {"pooling": "mean"},
    "weighted": {"pooling": "sum", "weighted": True},
    "bfloat16": {"table_dtype": "bfloat16"},
    "int8": {"table_dtype": "int8"},
    "cross": {"interaction": "cross", "cross_layers": 2, "cross_rank": 5},
}


def model(kind: str = "single") -> st.models.DLRM:
    return st.models.DLRM(rows=ROWS, dim=8, bottom=(16,), top=(16,), num_dense=13, **KINDS[kind])


def full_model() -> st.models.DLRM:
    """Tables as many and layers as wide as people use: every way to schedule a layer runs."""
    return st.models.DLRM(
        rows=FULL_ROWS, dim=16, bottom=(512, 256, 64), top=(512, 256), num_dense=13
    )


@cache
def _compiled(kind: str) -> st.Trainer:
    return st.Trainer(model(kind), st.optim.sgd(0.0))


def trainer(kind: str = "single", optimizer=None, seed: int = 0, encoder=None) -> st.Trainer:
    make = st.optim.rowwise_adagrad if kind == "int8" else st.optim.adagrad
    made = st.Trainer(model(kind), optimizer or make(0.05), seed=seed, encoder=encoder)
    return share_programs(made, kind)


def share_programs(made: st.Trainer, kind: str | st.Trainer = "single") -> st.Trainer:
    """Give `made` programs that are compiled already, for its kind or by another trainer."""
    compiled = _compiled(kind) if isinstance(kind, str) else kind
    made.program, made._logits = compiled.program, compiled._logits
    made.training_step._programs = compiled.training_step._programs
    made.state.programs = compiled.state.programs
    return made


def batch(
    size: int, seed: int = 0, kind: str = "single", labels: bool = True, rows: Sequence[int] = ROWS
) -> Batch:
    """Return rows whose label follows the first dense feature and the first id, mostly."""
    rng = np.random.default_rng([seed, size])
    dense = rng.normal(size=(size, NUM_DENSE)).astype(np.float32)
    ids = np.stack([rng.zipf(1.4, size) % count for count in rows], axis=1)
    clicks = dense[:, 0] + (ids[:, 0] == 1) > rng.normal(scale=0.5, size=size)
    if "pooling" in KINDS[kind]:
        ids = [bags(column, n, rng, kind) for column, n in zip(ids.T, rows, strict=True)]
    return Batch(dense, ids, clicks if labels else None)


def bags(first: np.ndarray, rows: int, rng: np.random.Generator, kind: str) -> Ragged:
    """Return bags of 0 to 4 ids that repeat now and then; those not empty begin with `first`."""
    lengths = rng.integers(0, 5, len(first))
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    ids = rng.integers(0, rows, offsets[-1])
    ids[offsets[:-1][lengths > 0]] = first[lengths > 0]
    weights = rng.normal(size=len(ids)).astype(np.float32) if kind == "weighted" else None
    return Ragged(ids, offsets, weights)


def assert_same_state(actual: dict[str, np.ndarray], expected: dict[str, np.ndarray]) -> None:
    """Compare parameters and slots bit for bit."""
    assert actual.keys() == expected.keys()
    for name, array in expected.items():
        assert actual[name].dtype == array.dtype, name
        assert actual[name].tobytes() == array.tobytes(), name


def raw_rows(size: int, seed: int = 0) -> dict[str, list]:
    """Return raw Criteo columns from which an encoder learns tables of `ROWS` rows."""
    rng = np.random.default_rng([seed, size])
    columns = {"label": rng.integers(0, 2, size).tolist()}
    for index in range(NUM_DENSE):
        columns[f"I{index + 1}"] = rng.integers(-2, 1000, size).tolist()
    for index, rows in enumerate(ROWS):
        # Two rows of a table are reserved: for missing values and for rare ones.
        values = np.arange(size) % (rows - 2)
        columns[f"C{index + 1}"] = [f"{value:08x}" for value in rng.permutation(values)]
    return columns


def encoder() -> st.data.Encoder:
    return st.data.Encoder.fit(raw_rows(300), min_count=1)
