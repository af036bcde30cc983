# SPDX-License-Identifier: Apache-2.0
"""Stochastic gradient descent: ``w <- w - lr g``. Row updates equal dense ones exactly."""

from __future__ import annotations

from sparsetrain.optim.formula import Formula
from sparsetrain.optim.optimizer import Optimizer
from sparsetrain.optim.options import Options, Unpack, make
from sparsetrain.optim.rule import Number


def _step(w, g, slots, h):
    return w - h.lr * g, slots


SGD = Formula("sgd", _step, noop_on_zero_grad="always")


def sgd(lr: Number, **options: Unpack[Options]) -> Optimizer:
    """Plain stochastic gradient descent.

    Parameters
    ----------
    lr : float, Schedule or function of the step
        Learning rate.
    **options
        See `Optimizer`.
    """
    return make(SGD, {"lr": lr}, options)
