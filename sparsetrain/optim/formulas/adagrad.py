# SPDX-License-Identifier: Apache-2.0
"""Adagrad: each element's rate falls with the squares it has seen.

``s <- s + g^2``, then ``w <- w - lr g / (sqrt(s) + eps)``; epsilon outside the root, as in PyTorch.
A row that is not touched has g = 0 and does not move, so row updates equal dense ones exactly.
"""

from __future__ import annotations

from sparsetrain.optim.formula import Formula, Slot, sqrt
from sparsetrain.optim.optimizer import Optimizer
from sparsetrain.optim.options import Options, Unpack, make, require_divisor
from sparsetrain.optim.rule import Number


def _step(w, g, slots, h):
    (total,) = slots
    total = total + g * g
    return w - h.lr * g / (sqrt(total) + h.eps), (total,)


def adagrad(
    lr: Number, *, eps: float = 1e-10, initial: float = 0.0, **options: Unpack[Options]
) -> Optimizer:
    """Adagrad, one accumulator per element.

    Parameters
    ----------
    lr : float, Schedule or function of the step
        Learning rate.
    eps : float
        Added to the root of the accumulator; above 0 unless `initial` is.
    initial : float
        The accumulator before the first step.
    **options
        See `Optimizer`.

    References
    ----------
    Duchi, Hazan, Singer 2011, https://jmlr.org/papers/v12/duchi11a.html
    """
    initial = require_divisor("adagrad", eps, initial)
    slots = (Slot("sum", "element", initial),)
    formula = Formula("adagrad", _step, slots, noop_on_zero_grad="always", slot_decay=(None,))
    return make(formula, {"lr": lr, "eps": eps}, options, own=["initial"])
