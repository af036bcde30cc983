# SPDX-License-Identifier: Apache-2.0
"""Training of one table on Zipf ids, whose gradients depend on the weights that were read."""

from __future__ import annotations

import numpy as np

from sparsetrain import optim
from sparsetrain.optim import Optimizer
from sparsetrain.runtime import as_numpy, as_tensor
from sparsetrain.sparse_tensor import RowSparse


def lr(steps: int) -> optim.Schedule:
    """Warm-up, then a cosine."""
    return 0.01 * optim.warmup(max(steps // 15, 1)) * optim.cosine(steps)


WIDTH = 3  # of all tables, unless it matters: a kernel is compiled for each


class Table:
    """A table (V, D) and its optimizer."""

    def __init__(self, optimizer: Optimizer, rows: int, width: int, dtype: str = "float32") -> None:
        self.optimizer, self.rows, self.width = optimizer, rows, width
        weight = np.random.default_rng(1).standard_normal((rows, width)).astype("f4")
        self.params = {"t": as_tensor(weight, dtype)}
        self.state = optimizer.init(self.params, {"t": {"t": slice(0, rows)}})

    def train(self, steps: int, ids_per_step: int = 256, seed: int = 0) -> Table:
        rng = np.random.default_rng(seed)
        for _ in range(steps):
            ids = (rng.zipf(1.2, ids_per_step) - 1) % self.rows
            self.step(ids, rng.standard_normal((ids_per_step, self.width)))
        return self

    def step(self, ids: np.ndarray, noise: np.ndarray) -> None:
        """Pull the rows towards 0, as they are when they are read."""
        self.optimizer.catch_up_(self.params, {"t": ids}, self.state)
        read = as_numpy(self.params["t"])[ids].astype("f4")
        values = (0.1 * read + 0.01 * noise).astype("f4")
        gradient = RowSparse.from_numpy(ids, values, self.rows)
        self.optimizer.apply_(self.params, {"t": gradient}, self.state)

    def arrays(self) -> dict[str, np.ndarray]:
        """Weight and slots, all rows current."""
        self.optimizer.flush_(self.params, self.state)
        slots = {name: slot for name, slot in self.state["t"].items() if name != "last"}
        return {name: as_numpy(t).copy() for name, t in {"w": self.params["t"], **slots}.items()}
