# SPDX-License-Identifier: Apache-2.0
"""Stochastic gradient descent: ``w <- w - lr g``. Row updates equal dense ones exactly."""

from sparsetrain.optim.formula import Formula
from sparsetrain.optim.optimizer import Optimizer


def _step(w, g, slots, h):
    return w - h.lr * g, slots


SGD = Formula("sgd", _step)


def sgd(lr: float) -> Optimizer:
    """Plain stochastic gradient descent.

    Parameters
    ----------
    lr : float
        Learning rate.
    """
    return Optimizer(SGD, {"lr": lr})
