# SPDX-License-Identifier: Apache-2.0
"""RMSProp: the rate of each element follows a running average of its squares.

``v <- alpha v + (1 - alpha) g^2``, then ``w <- w - lr g / (sqrt(v) + eps)``; epsilon outside the
root and no momentum, PyTorch's defaults. A row that is not touched stays, but its `v` fades.
"""

from __future__ import annotations

from collections.abc import Mapping

from sparsetrain.optim.formula import Formula, Slot, sqrt
from sparsetrain.optim.optimizer import Optimizer
from sparsetrain.optim.options import Options, Unpack, make, require_above_zero, require_below_one
from sparsetrain.optim.rule import Number


def _per_step(hyper: Mapping[str, float], step: int) -> dict[str, float]:
    return {"rise": 1 - hyper["alpha"]}  # in float64: 1 - 0.999 in float32 is off by 5e-5


def _step(w, g, slots, h):
    (square,) = slots
    square = h.alpha * square + h.rise * (g * g)
    return w - h.lr * g / (sqrt(square) + h.eps), (square,)


RMSPROP = Formula(
    "rmsprop",
    _step,
    (Slot("square"),),
    per_step=_per_step,
    noop_on_zero_grad="untouched",
    slot_decay=("alpha",),
)


def rmsprop(
    lr: Number, *, alpha: float = 0.99, eps: float = 1e-8, **options: Unpack[Options]
) -> Optimizer:
    """RMSProp.

    Parameters
    ----------
    lr : float, Schedule or function of the step
        Learning rate.
    alpha : float
        How much of the average a step keeps, below 1.
    eps : float
        Added to the root of the average, above 0.
    **options
        See `Optimizer`.

    References
    ----------
    Hinton, Tieleman 2012, Neural Networks for Machine Learning, lecture 6e.
    """
    require_below_one("rmsprop", alpha=alpha)
    require_above_zero("rmsprop", eps=eps)
    return make(RMSPROP, {"lr": lr, "alpha": alpha, "eps": eps}, options)
