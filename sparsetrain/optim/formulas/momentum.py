# SPDX-License-Identifier: Apache-2.0
"""Gradient descent with momentum, heavy-ball or Nesterov.

An untouched row still moves by its velocity, except in lazy mode.
"""

from __future__ import annotations

from sparsetrain.optim.arguments import Options, Unpack, make_optimizer, require_below_one
from sparsetrain.optim.optimizer import Optimizer
from sparsetrain.optim.update_rule import Number
from sparsetrain.tables.formula import Formula, Slot


def _heavy_ball(w, g, slots, h):
    (velocity,) = slots
    velocity = h.momentum * velocity + g
    return w - h.lr * velocity, (velocity,)


def _nesterov(w, g, slots, h):
    (velocity,) = slots
    velocity = h.momentum * velocity + g
    return w - h.lr * (g + h.momentum * velocity), (velocity,)


_SLOTS, _SLOT_DECAY = (Slot("velocity"),), ("momentum",)
HEAVY_BALL = Formula(
    "momentum", _heavy_ball, _SLOTS, noop_on_zero_grad="untouched", slot_decay=_SLOT_DECAY
)
NESTEROV = Formula(
    "nesterov", _nesterov, _SLOTS, noop_on_zero_grad="untouched", slot_decay=_SLOT_DECAY
)


def momentum(lr: Number, *, momentum: float = 0.9, **options: Unpack[Options]) -> Optimizer:
    """Gradient descent with momentum: ``v <- momentum v + g``, then ``w <- w - lr v``.

    There is no dampening, and `lr` is outside the sum, so a schedule acts at once (PyTorch's form,
    not Sutskever's).

    Parameters
    ----------
    lr : float, Schedule or function of the step
        Learning rate.
    momentum : float
        Decay rate of the velocity, below 1.
    **options
        See `Optimizer`.

    References
    ----------
    Polyak 1964, https://doi.org/10.1016/0041-5553(64)90137-5

    Examples
    --------
    >>> import sparsetrain as st
    >>> st.optim.momentum(0.1)
    <Optimizer: momentum, lr=0.1, momentum=0.9>
    """
    require_below_one("momentum", momentum=momentum)
    return make_optimizer(HEAVY_BALL, {"lr": lr, "momentum": momentum}, options)


def nesterov(lr: Number, *, momentum: float = 0.9, **options: Unpack[Options]) -> Optimizer:
    """Nesterov's momentum: ``v <- momentum v + g``, then ``w <- w - lr (g + momentum v)``.

    Parameters
    ----------
    lr, momentum, **options
        As in `momentum`.

    References
    ----------
    Sutskever et al. 2013, https://proceedings.mlr.press/v28/sutskever13.html

    Examples
    --------
    >>> import sparsetrain as st
    >>> st.optim.nesterov(0.1)
    <Optimizer: nesterov, lr=0.1, momentum=0.9>
    """
    require_below_one("nesterov", momentum=momentum)
    return make_optimizer(NESTEROV, {"lr": lr, "momentum": momentum}, options)
