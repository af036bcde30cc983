# SPDX-License-Identifier: Apache-2.0
"""Adagrad: learning rates that fall with the sum of each element's squared gradients.

An untouched row has gradient 0 and does not move, so row updates equal dense updates exactly.
"""

from __future__ import annotations

from sparsetrain.optim.arguments import Options, Unpack, make_optimizer, require_initial_or_eps
from sparsetrain.optim.optimizer import Optimizer
from sparsetrain.optim.update_rule import Number
from sparsetrain.tables.formula import Formula, Slot, sqrt


def _step(w, g, slots, h):
    (total,) = slots
    total = total + g * g
    return w - h.lr * g / (sqrt(total) + h.eps), (total,)


def adagrad(
    lr: Number, *, eps: float = 1e-10, initial: float = 0.0, **options: Unpack[Options]
) -> Optimizer:
    """Adagrad, with one accumulator per element.

    ``s <- s + g^2``, then ``w <- w - lr g / (sqrt(s) + eps)``; epsilon outside the root, as in
    PyTorch.

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

    Examples
    --------
    >>> import sparsetrain as st
    >>> st.optim.adagrad(0.02, initial=0.1)
    <Optimizer: adagrad, lr=0.02, eps=1e-10>
    """
    initial = require_initial_or_eps("adagrad", eps, initial)
    slots = (Slot("sum", "element", initial),)
    formula = Formula("adagrad", _step, slots, noop_on_zero_grad="always", slot_decay=(None,))
    return make_optimizer(formula, {"lr": lr, "eps": eps}, options)
