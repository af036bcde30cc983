# SPDX-License-Identifier: Apache-2.0
"""The formulas under test, NumPy's answer for each, and arrays to apply them to."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np

import sparsetrain as st
from sparsetrain.optim import Formula, Optimizer, RowMean, Slot, sqrt
from sparsetrain.runtime import as_numpy, as_tensor
from sparsetrain.sparse_tensor import RowSparse


def _momentum(w, g, slots, h):
    (velocity,) = slots
    velocity = h.momentum * velocity + g
    return w - h.lr * velocity, (velocity,)


def _mixed(w, g, slots, h):
    mean, total = slots
    mean = h.decay * mean + (1 - h.decay) * g
    total = total + h.mean_square
    return w - h.lr * mean / (sqrt(total) + h.eps), (mean, total)


def _count(w, g, slots, h):
    (steps,) = slots
    steps = steps + 1
    return w - h.lr * g / sqrt(steps), (steps,)


SQUARE = RowMean("mean_square", lambda w, g, slots, h: g * g)

# Three of the package, and users' own: one with momentum, one with both kinds of slots, one that
# counts the steps of each row.
OPTIMIZERS = {
    "sgd": st.optim.sgd(0.1),
    "adagrad": st.optim.adagrad(0.1, eps=1e-8, initial=0.1),
    "rowwise_adagrad": st.optim.rowwise_adagrad(0.1, initial=0.1),
    "momentum": Optimizer(
        Formula("momentum", _momentum, (Slot("velocity"),)), {"lr": 0.1, "momentum": 0.9}
    ),
    "mixed": Optimizer(
        Formula("mixed", _mixed, (Slot("mean"), Slot("total", "row", 0.5)), (SQUARE,)),
        {"lr": 0.1, "decay": 0.9, "eps": 1e-6},
    ),
    "count": Optimizer(Formula("count", _count, (Slot("steps", "row"),)), {"lr": 0.1}),
}


def in_numpy(optimizer: Optimizer, w: np.ndarray, g: np.ndarray, slots: dict[str, np.ndarray]):
    """One dense step of the formula in float64; `slots` as in the state, (V,) for a row's."""
    formula = optimizer.formula
    h = SimpleNamespace(**optimizer.hyper)
    old = tuple(slots[s.name][:, None] if s.per == "row" else slots[s.name] for s in formula.slots)
    for mean in formula.row_means:
        setattr(h, mean.name, mean.of(w, g, old, h).mean(axis=-1, keepdims=True))
    new_w, new = formula.step(w, g, old, h)
    flat = zip(formula.slots, new, strict=True)
    return new_w, {s.name: v[:, 0] if s.per == "row" else v for s, v in flat}


class Run:
    """One parameter ``w`` and its state under an optimizer."""

    def __init__(self, optimizer: Optimizer, weight: np.ndarray, seed: int = 0) -> None:
        self.optimizer = optimizer
        self.params = {"w": as_tensor(weight)}
        self.state = optimizer.init(self.params, seed=seed)

    def apply(self, gradient: RowSparse | np.ndarray) -> Run:
        tensor = gradient if isinstance(gradient, RowSparse) else as_tensor(gradient)
        self.optimizer.apply_(self.params, {"w": tensor}, self.state)
        return self

    def arrays(self) -> dict[str, np.ndarray]:
        """Copies of the weight and of all slots."""
        slots: dict[str, Any] = {"w": self.params["w"], **self.state["w"]}
        return {name: as_numpy(tensor).copy() for name, tensor in slots.items()}
