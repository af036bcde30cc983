# SPDX-License-Identifier: Apache-2.0
"""References of the package's optimizers: a step of each paper in NumPy, and cases of options."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import numpy as np

from sparsetrain import optim


def sgd(w, g, s, t, lr):
    return w - lr * g


def momentum(w, g, s, t, lr, momentum=0.9):
    s["v"] = momentum * s["v"] + g
    return w - lr * s["v"]


def nesterov(w, g, s, t, lr, momentum=0.9):
    s["v"] = momentum * s["v"] + g
    return w - lr * (g + momentum * s["v"])


def adagrad(w, g, s, t, lr, eps=1e-10):
    s["n"] = s["n"] + g * g
    return w - lr * g / (np.sqrt(s["n"]) + eps)


def rowwise_adagrad(w, g, s, t, lr, eps=1e-8):
    s["n"] = s["n"] + (g * g).mean(axis=1, keepdims=True)
    return w - lr * g / (np.sqrt(s["n"]) + eps)


def rmsprop(w, g, s, t, lr, alpha=0.99, eps=1e-8):
    s["v"] = alpha * s["v"] + (1 - alpha) * g * g
    return w - lr * g / (np.sqrt(s["v"]) + eps)


def adam(w, g, s, t, lr, beta1=0.9, beta2=0.999, eps=1e-8):
    s["m"] = beta1 * s["m"] + (1 - beta1) * g
    s["v"] = beta2 * s["v"] + (1 - beta2) * g * g
    return w - lr * s["m"] / (1 - beta1**t) / (np.sqrt(s["v"] / (1 - beta2**t)) + eps)


def adamw(w, g, s, t, lr, weight_decay=0.01):
    return adam(w * (1 - lr * weight_decay), g, s, t, lr)


def ftrl(w, g, s, t, lr, l1=0.0, l2=0.0, beta=1.0):
    n = s["n"] + g * g
    s["z"] = s["z"] + g - (np.sqrt(n) - np.sqrt(s["n"])) / lr * w
    s["n"] = n
    moved = -(s["z"] - np.sign(s["z"]) * l1) / ((beta + np.sqrt(n)) / lr + l2)
    return np.where(np.abs(s["z"]) <= l1, 0.0, moved)


class Reference(NamedTuple):
    """An optimizer of the package.

    `step` takes a weight, its gradient, slots that begin as 0, the number of the step from 1, and
    numbers by name. Of `cases`, by name, the first is not slow.
    """

    step: Callable[..., Any]
    cases: dict[str, dict[str, float]]


COUPLED = {"weight_decay": 1e-3}
# Name in `OPTIMIZERS` -> its reference.
REFERENCES = {
    "sgd": Reference(sgd, {"coupled decay": COUPLED, "": {}}),
    "momentum": Reference(momentum, {"": {}, "coupled decay": COUPLED}),
    "nesterov": Reference(nesterov, {"decoupled decay": {**COUPLED, "decoupled": True}}),
    "adagrad": Reference(adagrad, {"coupled decay": COUPLED, "": {}}),
    "rowwise_adagrad": Reference(rowwise_adagrad, {"coupled decay": COUPLED}),
    "rmsprop": Reference(rmsprop, {"coupled decay": COUPLED, "": {}}),
    "adam": Reference(
        adam,
        {"": {}, "coupled decay": COUPLED, "clipped": {"clip_norm": 0.3, "clip_value": 0.02}},
    ),
    "adamw": Reference(adamw, {"": {}, "without decay": {"weight_decay": 0.0}}),
    "ftrl": Reference(
        ftrl,
        {"": {"lr": 0.05, "l1": 1e-3}, "both penalties": {"lr": 0.05, "l1": 1e-2, "l2": 0.1}},
    ),
}
# Name and case -> the optimizer's name and options.
CASES = {
    f"{name}, {case}" if case else name: (name, options)
    for name, reference in REFERENCES.items()
    for case, options in reference.cases.items()
}
ONE_OF_EACH = [f"{n}, {c}" if c else n for n, r in REFERENCES.items() for c in [*r.cases][:1]]


def made(case: str, lr: Any, **more: Any) -> optim.Optimizer:
    """Return the optimizer of a case; its own rate goes before `lr`."""
    name, options = CASES[case]
    return optim.OPTIMIZERS[name](**{"lr": lr, **options, **more})


def expected(case: str, lr: float, w: np.ndarray, gradients: Iterable[np.ndarray]) -> np.ndarray:
    """Return the weight after steps in float64, one for each gradient."""
    name, options = CASES[case]
    numbers: dict[str, Any] = {"lr": lr, **options}
    norm, value = numbers.pop("clip_norm", np.inf), numbers.pop("clip_value", np.inf)
    decoupled = numbers.pop("decoupled", False)
    decay = 0.0 if name == "adamw" else numbers.pop("weight_decay", 0.0)
    w, slots = w.astype("f8"), defaultdict[str, Any](float)
    for t, g in enumerate(gradients, 1):
        g = np.clip(g * min(1.0, norm / np.linalg.norm(g)), -value, value)
        w, g = (w * (1 - numbers["lr"] * decay), g) if decoupled else (w, g + decay * w)
        w = REFERENCES[name].step(w, g, slots, t, **numbers)
    return w
