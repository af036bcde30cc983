# SPDX-License-Identifier: Apache-2.0
"""A model in which two features look up one table, and the same in NumPy's float64.

``python -m tests.shared_tables 1 2`` trains it with each of these numbers of threads and prints a
digest of all that it holds.
"""

from __future__ import annotations

import hashlib
import sys

import numpy as np
import pandas as pd
import tvm
from tvm.relax.frontend import nn

import sparsetrain as st
from sparsetrain import runtime
from sparsetrain.data import Batch, Ragged

NAMES = ["user", "history", "item"]
ROWS = {"user": 9, "item": 12}  # of the tables
SHARE = {"history": "item"}
WIDTH = 4
KINDS = {
    "single": {},
    "sum": {"pooling": "sum"},
    "mean": {"pooling": "mean"},
    "weighted": {"pooling": "sum", "weighted": True},
}


class Pairs(st.models.ClickModel):
    """The sum of the dot products of every two vectors: the second order of a factorisation."""

    def forward(self, dense: nn.Tensor, embedded: nn.Tensor) -> nn.Tensor:
        total = nn.op.sum(embedded, axis=1)  # (B, D)
        own = nn.op.sum(embedded * embedded, axis=[1, 2])  # (B,)
        twice = nn.op.sum(total * total, axis=1) - own
        return nn.op.reshape(twice * 0.5, (dense.shape[0], 1))


def owner(name: str) -> str:
    """Return the feature after which the table is named."""
    return SHARE.get(name, name)


def model(kind: str = "single", **given) -> Pairs:
    rows = [ROWS[owner(name)] for name in NAMES]
    options = {"dim": WIDTH, "num_dense": 0, "names": NAMES, "share_embedding": SHARE}
    return Pairs(rows, **{**options, **KINDS[kind], **given})


def batch(size: int, seed: int, kind: str = "single") -> Batch:
    """Return rows whose ids repeat within a column, across columns and within a bag."""
    rng = np.random.default_rng([seed, size])
    singles = [rng.zipf(1.5, size) % ROWS[owner(name)] for name in NAMES]
    dense, labels = np.zeros((size, 0), np.float32), rng.integers(0, 2, size)
    if kind == "single":
        return Batch(dense, np.stack(singles, axis=1), labels)
    bags = [
        _bags(rng, single, name == "history", kind)
        for single, name in zip(singles, NAMES, strict=True)
    ]
    return Batch(dense, bags, labels)


def _bags(rng: np.random.Generator, single: np.ndarray, many: bool, kind: str) -> Ragged:
    lengths = rng.integers(0, 5, len(single)) if many else np.ones(len(single), np.int64)
    ids = rng.zipf(1.5, lengths.sum()) % ROWS["item"] if many else single
    weights = rng.normal(size=len(ids)).astype(np.float32) if kind == "weighted" else None
    return Ragged(ids, np.cumsum([0, *lengths]), weights)


def log(rows: int = 400, items: int = 10, seed: int = 0) -> pd.DataFrame:
    """Rows that were clicked when the item was seen before."""
    rng = np.random.default_rng(seed)
    made = pd.DataFrame({"user": rng.integers(0, 7, rows), "item": rng.integers(0, items, rows)})
    made["history"] = [rng.integers(0, items, rng.integers(0, 4)).tolist() for _ in range(rows)]
    seen = [item in bag for item, bag in zip(made["item"], made["history"], strict=True)]
    return made.assign(click=np.array(seen, int))


class Reference:
    """The model in float64 with a table that is really one, trained by Adagrad."""

    def __init__(self, tables: dict[str, np.ndarray], lr: float, mean: bool) -> None:
        self.tables = {name: table.astype(np.float64) for name, table in tables.items()}
        self._sums = {name: np.zeros_like(table) for name, table in self.tables.items()}
        self._lr, self._mean = lr, mean

    def _entries(self, given: Batch):
        """Yield feature, table, example, id and factor of everything that is looked up."""
        for index, name in enumerate(NAMES):
            ids = given.ids
            single = np.arange(len(given) + 1)
            bag = ids[index] if isinstance(ids, tuple) else Ragged(ids[:, index], single)
            for example in range(len(given)):
                own = slice(*bag.offsets[example : example + 2])
                factors = np.ones(own.stop - own.start) if bag.weights is None else bag.weights[own]
                if self._mean:
                    factors = factors / max(len(factors), 1)
                for id_, factor in zip(bag.ids[own], factors, strict=True):
                    yield index, owner(name), example, id_, float(factor)

    def gradients(self, given: Batch) -> dict[str, np.ndarray]:
        entries = list(self._entries(given))
        embedded = np.zeros((len(given), len(NAMES), WIDTH))
        for index, table, example, id_, factor in entries:
            embedded[example, index] += factor * self.tables[table][id_]
        total = embedded.sum(axis=1)
        logits = ((total**2).sum(axis=1) - (embedded**2).sum(axis=(1, 2))) / 2
        back = (1 / (1 + np.exp(-logits)) - given.labels) / len(given)
        cotangent = back[:, None, None] * (total[:, None] - embedded)
        found = {name: np.zeros_like(table) for name, table in self.tables.items()}
        for index, table, example, id_, factor in entries:
            found[table][id_] += factor * cotangent[example, index]
        return found

    def step(self, given: Batch) -> None:
        for name, gradient in self.gradients(given).items():
            self._sums[name] += gradient**2
            root = np.sqrt(self._sums[name]) + 1e-10
            self.tables[name] -= self._lr * gradient / root


def digest() -> str:
    found = hashlib.sha256()
    for kind in ("single", "mean"):
        for optimizer in (st.optim.adagrad(0.1), st.optim.adam(0.1, mode="exact", update="sparse")):
            trainer = st.Trainer(model(kind), optimizer)
            for seed in range(3):
                trainer.step(batch(300, seed, kind))
            for array in trainer.state_dict().values():
                found.update(array.tobytes())
    return found.hexdigest()


if __name__ == "__main__":
    for threads in map(int, sys.argv[1:]):
        # The variable alone gives no more threads than there are cores.
        tvm.get_global_func("runtime.config_threadpool")(1, threads)
        print(runtime.num_threads(), digest())
