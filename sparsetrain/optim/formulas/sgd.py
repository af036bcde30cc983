# SPDX-License-Identifier: Apache-2.0
"""Stochastic gradient descent. Row updates equal dense updates exactly."""

from __future__ import annotations

from sparsetrain.optim.arguments import Options, Unpack, make_optimizer
from sparsetrain.optim.optimizer import Optimizer
from sparsetrain.optim.update_rule import Number
from sparsetrain.tables.formula import Formula


def _step(w, g, slots, h):
    return w - h.lr * g, slots


SGD = Formula("sgd", _step, noop_on_zero_grad="always")


def sgd(lr: Number, **options: Unpack[Options]) -> Optimizer:
    """Stochastic gradient descent: ``w <- w - lr g``.

    Parameters
    ----------
    lr : float, Schedule or function of the step
        Learning rate.
    **options
        See `Optimizer`.

    References
    ----------
    Robbins, Monro 1951, https://doi.org/10.1214/aoms/1177729586

    Examples
    --------
    >>> import numpy as np
    >>> import sparsetrain as st
    >>> params = {"table": st.runtime.as_tensor(np.ones((3, 2), "float32"))}
    >>> optimizer = st.optim.sgd(0.5)
    >>> state = optimizer.init(params)
    >>> gradient = st.RowSparse.from_numpy([1], np.ones((1, 2), "float32"), 3)
    >>> result = optimizer.apply_(params, {"table": gradient}, state)
    >>> st.runtime.as_numpy(params["table"]).tolist()
    [[1.0, 1.0], [0.5, 0.5], [1.0, 1.0]]
    """
    return make_optimizer(SGD, {"lr": lr}, options)
