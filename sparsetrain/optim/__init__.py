# SPDX-License-Identifier: Apache-2.0
"""Optimizers as values: each is a formula that is compiled to dense and row kernels.

From a formula to a write: `formula` (the update of one element, and `KernelSpec`, which adds decay
and clipping), `update_rule` (a formula with numbers and a mode), `param_groups` (the rows of each
rule: `RowRange`), `optimizer` (options and methods), `update` (the step as one compiled function).
`formulas` has the optimizers of this package.
"""

from collections.abc import Callable as _Callable

from sparsetrain import runtime as _runtime  # noqa: F401
from sparsetrain.optim.arguments import options_of as options_of
from sparsetrain.optim.average import averages as averages
from sparsetrain.optim.average import ema as ema
from sparsetrain.optim.average import swa as swa
from sparsetrain.optim.formulas.adagrad import adagrad as adagrad
from sparsetrain.optim.formulas.adam import adam as adam
from sparsetrain.optim.formulas.adamw import adamw as adamw
from sparsetrain.optim.formulas.ftrl import ftrl as ftrl
from sparsetrain.optim.formulas.momentum import momentum as momentum
from sparsetrain.optim.formulas.momentum import nesterov as nesterov
from sparsetrain.optim.formulas.rmsprop import rmsprop as rmsprop
from sparsetrain.optim.formulas.rowwise_adagrad import rowwise_adagrad as rowwise_adagrad
from sparsetrain.optim.formulas.sgd import sgd as sgd
from sparsetrain.optim.gradients import accumulate_ as accumulate_
from sparsetrain.optim.gradients import global_norm as global_norm
from sparsetrain.optim.optimizer import Optimizer as Optimizer
from sparsetrain.optim.param_groups import ParamGroup as ParamGroup
from sparsetrain.optim.result import StepResult as StepResult
from sparsetrain.optim.schedules import Schedule as Schedule
from sparsetrain.optim.schedules import constant as constant
from sparsetrain.optim.schedules import cosine as cosine
from sparsetrain.optim.schedules import inverse_sqrt as inverse_sqrt
from sparsetrain.optim.schedules import polynomial as polynomial
from sparsetrain.optim.schedules import step_decay as step_decay
from sparsetrain.optim.schedules import warmup as warmup
from sparsetrain.optim.state import State as State
from sparsetrain.system.exports import public_names as _public_names
from sparsetrain.tables.formula import Formula as Formula
from sparsetrain.tables.formula import RowMean as RowMean
from sparsetrain.tables.formula import Slot as Slot
from sparsetrain.tables.formula import abs as abs
from sparsetrain.tables.formula import exp as exp
from sparsetrain.tables.formula import maximum as maximum
from sparsetrain.tables.formula import minimum as minimum
from sparsetrain.tables.formula import sign as sign
from sparsetrain.tables.formula import sqrt as sqrt
from sparsetrain.tables.formula import where as where

# Name in settings and saved runs -> constructor.
OPTIMIZERS: dict[str, _Callable[..., Optimizer]] = {
    "sgd": sgd,
    "momentum": momentum,
    "nesterov": nesterov,
    "adagrad": adagrad,
    "rowwise_adagrad": rowwise_adagrad,
    "rmsprop": rmsprop,
    "adam": adam,
    "adamw": adamw,
    "ftrl": ftrl,
}

__all__, __dir__ = _public_names(globals(), "options_of")
