# SPDX-License-Identifier: Apache-2.0
"""RMSProp: learning rates that follow a moving average of each element's squared gradients.

In lazy mode an untouched row keeps its average; in a dense optimizer the average decays.
"""

from __future__ import annotations

from collections.abc import Mapping

from sparsetrain.optim.arguments import (
    Options,
    Unpack,
    make_optimizer,
    require_above_zero,
    require_below_one,
)
from sparsetrain.optim.optimizer import Optimizer
from sparsetrain.optim.update_rule import Number
from sparsetrain.tables.formula import Formula, Slot, sqrt


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

    ``v <- alpha v + (1 - alpha) g^2``, then ``w <- w - lr g / (sqrt(v) + eps)``; as in PyTorch's
    defaults, epsilon is outside the root and there is no momentum.

    Parameters
    ----------
    lr : float, Schedule or function of the step
        Learning rate.
    alpha : float
        Decay rate of the moving average, below 1.
    eps : float
        Added to the root of the average, above 0.
    **options
        See `Optimizer`.

    References
    ----------
    Hinton, Tieleman 2012, Neural Networks for Machine Learning, lecture 6e,
    https://www.cs.toronto.edu/~tijmen/csc321/slides/lecture_slides_lec6.pdf

    Examples
    --------
    >>> import sparsetrain as st
    >>> st.optim.rmsprop(1e-3)
    <Optimizer: rmsprop, lr=0.001, alpha=0.99, eps=1e-08>
    """
    require_below_one("rmsprop", alpha=alpha)
    require_above_zero("rmsprop", eps=eps)
    return make_optimizer(RMSPROP, {"lr": lr, "alpha": alpha, "eps": eps}, options)
