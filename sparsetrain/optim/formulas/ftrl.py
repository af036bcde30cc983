# SPDX-License-Identifier: Apache-2.0
"""FTRL-proximal: weights that are recomputed from accumulated gradients, many exactly 0.

`z` starts at 0 and determines the weight, so the first step discards the initial weight: in exact
and dense mode for all rows, in lazy mode for a row when it is first touched.
"""

from __future__ import annotations

from collections.abc import Mapping

from sparsetrain.errors import ConfigError
from sparsetrain.optim.arguments import Unpack, WithoutDecay, make_optimizer, require_initial
from sparsetrain.optim.optimizer import Optimizer
from sparsetrain.optim.update_rule import Number
from sparsetrain.tables.formula import Formula, Slot, maximum, minimum, sqrt


def _per_step(hyper: Mapping[str, float], step: int) -> dict[str, float]:
    if hyper["lr"] <= 0:
        raise ConfigError(f"ftrl: lr is {hyper['lr']} in step {step}; it must stay above 0")
    return {"inverse": 1 / hyper["lr"], "ridge": hyper["beta"] + hyper["lr"] * hyper["l2"]}


def _step(w, g, slots, h):
    linear, square = slots
    new_square = square + g * g
    linear = linear + g - (sqrt(new_square) - sqrt(square)) * h.inverse * w
    excess = linear - minimum(maximum(linear, -h.l1), h.l1)  # 0 where |z| <= l1
    return -h.lr * excess / (h.ridge + sqrt(new_square)), (linear, new_square)


def ftrl(
    lr: Number,
    *,
    l1: float = 0.0,
    l2: float = 0.0,
    beta: float = 1.0,
    initial: float = 0.0,
    **options: Unpack[WithoutDecay],
) -> Optimizer:
    """FTRL-proximal.

    ``n' = n + g^2``, ``z <- z + g - (sqrt(n') - sqrt(n)) / lr w``, then ``w <- 0`` where
    ``|z| <= l1``, else ``w <- -lr (z - sign(z) l1) / (beta + sqrt(n') + lr l2)``.

    Parameters
    ----------
    lr : float, Schedule or function of the step
        Learning rate, the paper's alpha; above 0 in every step.
    l1, l2 : float
        Strengths of the penalties; l1 sets small weights to exactly 0.
    beta : float
        Added to the root of the squares.
    initial : float
        The sum of squares before the first step.
    **options
        See `Optimizer`; l1 and l2 replace `weight_decay`, and there is no `decoupled`.

    References
    ----------
    McMahan et al. 2013, https://doi.org/10.1145/2487575.2488200

    Examples
    --------
    >>> import sparsetrain as st
    >>> st.optim.ftrl(0.1, l1=1e-3)
    <Optimizer: ftrl, lr=0.1, l1=0.001, l2=0.0, beta=1.0>
    """
    initial = require_initial("ftrl", initial)
    if [beta, initial, l2] == [0, 0, 0]:
        raise ConfigError("ftrl: one of beta, initial and l2 must be above 0")
    slots = (Slot("linear"), Slot("square", "element", initial))
    formula = Formula(
        "ftrl", _step, slots, per_step=_per_step, slot_decay=(None, None), decays=False
    )
    hyper: dict[str, Number] = {"lr": lr, "l1": l1, "l2": l2, "beta": beta}
    return make_optimizer(formula, hyper, options, WithoutDecay)
