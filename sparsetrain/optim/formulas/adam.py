# SPDX-License-Identifier: Apache-2.0
"""Adam: a moving average of the gradient, divided by the root of an average of its squares.

The bias correction uses the optimizer's step count even for a row that few steps touched, as in
`torch.optim.SparseAdam`.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import sqrt as root

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
    # Computed in float64 on the host, so that kernels need no powers.
    return {
        "rise1": 1 - hyper["beta1"],
        "rise2": 1 - hyper["beta2"],
        "rate": hyper["lr"] / (1 - hyper["beta1"] ** step),
        "spread": 1 / root(1 - hyper["beta2"] ** step),
    }


def _step(w, g, slots, h):
    mean, square = slots
    mean = h.beta1 * mean + h.rise1 * g
    square = h.beta2 * square + h.rise2 * (g * g)
    return w - h.rate * mean / (sqrt(square) * h.spread + h.eps), (mean, square)


# `adamw` uses it under its own name.
ADAM = Formula(
    "adam",
    _step,
    (Slot("mean"), Slot("square")),
    per_step=_per_step,
    noop_on_zero_grad="untouched",
    slot_decay=("beta1", "beta2"),
)


def adam(
    lr: Number,
    *,
    beta1: float = 0.9,
    beta2: float = 0.999,
    eps: float = 1e-8,
    **options: Unpack[Options],
) -> Optimizer:
    """Adam.

    ``m <- beta1 m + (1 - beta1) g``, ``v <- beta2 v + (1 - beta2) g^2``, then
    ``w <- w - (lr / c1) m / (sqrt(v) / sqrt(c2) + eps)`` with ``c = 1 - beta^step``; epsilon is
    added after the bias correction, as in PyTorch. Weight decay is coupled, see `adamw`.

    Parameters
    ----------
    lr : float, Schedule or function of the step
        Learning rate.
    beta1, beta2 : float
        Decay rates of the two averages, below 1.
    eps : float
        Added to the corrected root, above 0.
    **options
        See `Optimizer`. With ``mode="lazy"`` this is known as sparse or lazy Adam.

    References
    ----------
    Kingma, Ba 2015, https://arxiv.org/abs/1412.6980

    Examples
    --------
    >>> import sparsetrain as st
    >>> st.optim.adam(1e-3, mode="exact")
    <Optimizer: adam, lr=0.001, beta1=0.9, beta2=0.999, eps=1e-08, mode='exact'>
    """
    require_below_one("adam", beta1=beta1, beta2=beta2)
    require_above_zero("adam", eps=eps)
    return make_optimizer(ADAM, {"lr": lr, "beta1": beta1, "beta2": beta2, "eps": eps}, options)
