# SPDX-License-Identifier: Apache-2.0
"""A loop of one's own over a table and a dense matrix, for every kind of state that it can keep.

``python -m tests.optim.loop on FOLDER`` loads every case that lies in FOLDER, takes the steps that
are left and saves it again in FOLDER/ended; ``... save FOLDER`` saves one after every step.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

from sparsetrain import optim
from sparsetrain.optim import Optimizer
from sparsetrain.runtime import as_numpy, as_tensor
from sparsetrain.sparse_tensor import RowSparse

ROWS, WIDTH = 60, 8
END = 9  # steps of a loop
TABLES = {"t": {"C1": slice(0, 40), "C2": slice(40, 60)}}

OPTIMIZERS = {
    "sgd": lambda: optim.sgd(0.1),
    "momentum": lambda: optim.momentum(0.1),
    "adagrad": lambda: optim.adagrad(0.1, initial=0.1),
    "rowwise_adagrad": lambda: optim.rowwise_adagrad(0.1),
    "adam": lambda: optim.adam(0.1),
}
CASES = {
    **{
        f"{name} {dtype}": (make, dtype)
        for name, make in OPTIMIZERS.items()
        for dtype in ("float32", "bfloat16", "float16")
        if dtype == "float32" or name in ("rowwise_adagrad", "adam")
    },
    "adam exact": (lambda: optim.adam(0.1, mode="exact", update="sparse"), "float32"),
    "adamw exact bfloat16": (lambda: optim.adamw(0.1, mode="exact", update="sparse"), "bfloat16"),
    "sgd, a schedule": (lambda: optim.sgd(0.1 * optim.warmup(20)), "float32"),
    "ftrl": (lambda: optim.ftrl(0.1, l1=1e-3), "float32"),
}


class Loop:
    """Parameters, an optimizer and its state; weights and rounding follow `seed`."""

    def __init__(
        self,
        optimizer: Optimizer,
        dtype: str = "float32",
        seed: int = 0,
        tables: dict | None = None,
    ) -> None:
        rng = np.random.default_rng(seed)
        self.optimizer = optimizer
        self.params = {
            "t": as_tensor(rng.normal(size=(ROWS, WIDTH)), dtype),
            "w": as_tensor(rng.normal(size=(3, 4)), "float32"),
        }
        self.state = optimizer.init(self.params, tables, seed=seed)

    def train(self, until: int) -> Loop:
        """Take the steps that are missing; each step's numbers follow from its own."""
        while self.state.step < until:
            rng = np.random.default_rng([7, self.state.step])
            ids = rng.integers(0, ROWS, 12)
            self.optimizer.catch_up_(self.params, {"t": ids}, self.state)
            read = as_numpy(self.params["t"])[ids].astype("f4")
            rows = (0.1 * read + rng.normal(size=read.shape)).astype("f4")
            dense = as_tensor(0.1 * as_numpy(self.params["w"]) + 0.01, "float32")
            gradients = {"t": RowSparse.from_numpy(ids, rows, ROWS), "w": dense}
            self.optimizer.apply_(self.params, gradients, self.state)
        return self

    def save(self, folder: Path) -> None:
        self.optimizer.save(folder, self.params, self.state, {"next": self.state.step})

    def load_(self, folder: Path) -> dict:
        return self.optimizer.load_(folder, self.params, self.state)


def case(name: str, seed: int = 0) -> Loop:
    make, dtype = CASES[name]
    return Loop(make(), dtype, seed)


def go_on(folder: Path) -> None:
    """Load each case into other weights and another state; end it and save it."""
    for name in CASES:
        if not (folder / name).exists():
            continue
        loop = case(name, seed=5)
        loop.load_(folder / name)
        loop.train(END).save(folder / "ended" / name)


def save_for_ever(folder: Path) -> None:
    loop = case("adam bfloat16")
    while True:
        loop.train(loop.state.step + 1).save(folder)


if __name__ == "__main__":
    {"on": go_on, "save": save_for_ever}[sys.argv[1]](Path(sys.argv[2]))
