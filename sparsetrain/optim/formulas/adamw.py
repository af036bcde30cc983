# SPDX-License-Identifier: Apache-2.0
"""AdamW: Adam with decoupled weight decay."""

from __future__ import annotations

from sparsetrain.optim.arguments import (
    Unpack,
    WithoutDecay,
    make_optimizer,
    require_above_zero,
    require_below_one,
)
from sparsetrain.optim.formulas.adam import ADAM
from sparsetrain.optim.optimizer import Optimizer
from sparsetrain.optim.update_rule import Number

ADAMW = ADAM._replace(name="adamw")


def adamw(
    lr: Number,
    *,
    beta1: float = 0.9,
    beta2: float = 0.999,
    eps: float = 1e-8,
    weight_decay: float = 0.01,
    **options: Unpack[WithoutDecay],
) -> Optimizer:
    """Adam with decoupled weight decay: ``w <- w (1 - lr weight_decay)`` before Adam's step.

    The decay is scaled by the learning rate, schedule included, as in PyTorch.

    Parameters
    ----------
    lr, beta1, beta2, eps
        As in `adam`.
    weight_decay : float
        Decay rate; it is multiplied by `lr`. In lazy mode only touched rows decay.
    **options
        See `Optimizer`.

    References
    ----------
    Loshchilov, Hutter 2019, https://arxiv.org/abs/1711.05101

    Examples
    --------
    >>> import sparsetrain as st
    >>> st.optim.adamw(1e-3).weight_decay
    0.01
    """
    require_below_one("adamw", beta1=beta1, beta2=beta2)
    require_above_zero("adamw", eps=eps)
    hyper = {"lr": lr, "beta1": beta1, "beta2": beta2, "eps": eps}
    decay = {"weight_decay": weight_decay, "decoupled": True}
    return make_optimizer(ADAMW, hyper, options, WithoutDecay, decay)
