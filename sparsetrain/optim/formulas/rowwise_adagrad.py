# SPDX-License-Identifier: Apache-2.0
"""Row-wise Adagrad: one accumulator per row, so a table's state is V numbers instead of V x D."""

from __future__ import annotations

from sparsetrain.optim.arguments import Options, Unpack, make_optimizer, require_initial_or_eps
from sparsetrain.optim.optimizer import Optimizer
from sparsetrain.optim.update_rule import Number
from sparsetrain.tables.formula import Formula, RowMean, Slot, sqrt


def _square(w, g, slots, h):
    return g * g


SQUARE = RowMean("mean_square", _square)


def _step(w, g, slots, h):
    (total,) = slots
    total = total + h.mean_square
    return w - h.lr * g / (sqrt(total) + h.eps), (total,)


def rowwise_adagrad(
    lr: Number, *, eps: float = 1e-8, initial: float = 0.0, **options: Unpack[Options]
) -> Optimizer:
    """Adagrad with one accumulator per row of a matrix or table.

    ``s <- s + mean of g^2 over the row``, then ``w <- w - lr g / (sqrt(s) + eps)``. A vector, such
    as a bias, has rows of one element, so this is ordinary Adagrad.

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
    Naumov et al. 2019, https://arxiv.org/abs/1906.00091; the form of FBGEMM's
    ``EXACT_ROWWISE_ADAGRAD``.

    Examples
    --------
    >>> import sparsetrain as st
    >>> st.optim.rowwise_adagrad(0.02)
    <Optimizer: rowwise_adagrad, lr=0.02, eps=1e-08>
    """
    initial = require_initial_or_eps("rowwise_adagrad", eps, initial)
    slots = (Slot("sum", "row", initial),)
    formula = Formula(
        "rowwise_adagrad",
        _step,
        slots,
        row_means=(SQUARE,),
        noop_on_zero_grad="always",
        slot_decay=(None,),
    )
    return make_optimizer(formula, {"lr": lr, "eps": eps}, options)
