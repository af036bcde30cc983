# SPDX-License-Identifier: Apache-2.0
"""Adam: a running average of the gradient over the root of one of its squares.

``m <- beta1 m + (1 - beta1) g``, ``v <- beta2 v + (1 - beta2) g^2``, then
``w <- w - (lr / c1) m / (sqrt(v) / sqrt(c2) + eps)`` with ``c = 1 - beta^step``. Epsilon is added
after the bias correction, as in PyTorch. The step is the optimizer's, also for a row that was not
touched in most of them (as in `torch.optim.SparseAdam`). Weight decay, if any, is coupled.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import sqrt as root

from sparsetrain.optim.formula import Formula, Slot, sqrt
from sparsetrain.optim.optimizer import Optimizer
from sparsetrain.optim.options import Options, Unpack, make, require_above_zero, require_below_one
from sparsetrain.optim.rule import Number


def _per_step(hyper: Mapping[str, float], step: int) -> dict[str, float]:
    # What depends on the step or is better computed in float64: kernels need no power.
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


# Of `adamw` too, by its name.
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

    Parameters
    ----------
    lr : float, Schedule or function of the step
        Learning rate.
    beta1, beta2 : float
        How much of each average a step keeps, below 1.
    eps : float
        Added to the corrected root, above 0.
    **options
        See `Optimizer`. With ``mode="lazy"`` this is what others call sparse or lazy Adam.

    References
    ----------
    Kingma, Ba 2015, https://arxiv.org/abs/1412.6980
    """
    require_below_one("adam", beta1=beta1, beta2=beta2)
    require_above_zero("adam", eps=eps)
    return make(ADAM, {"lr": lr, "beta1": beta1, "beta2": beta2, "eps": eps}, options)
