# SPDX-License-Identifier: Apache-2.0
"""Optimizers as values: a formula each, from which the dense and the row kernel are made.

From a rule to what is written: `formula` (the update of one element), `spec` (with what is done
to the gradient before: the key of a kernel), `rule` (with its numbers and its mode), `group` (which
rows of which parameter follow which rule: a `RowRange`), `optimizer` (options, and the way in),
`owner` (makes its state), `preparing` (checks a step), `step` (goes through parameters and ranges),
`range_update` (calls the kernel of a range), `kernels` (has it).

Beside that, folders: `paths` (every row of a table, where that is cheaper), `exact` (rows that were
not touched get the bits of a dense optimizer), `fused` (updates behind the gradients in one
program), `cuda` (all of it on a GPU); and files: `bound`, `repeated` and `together` (what a step
need not find out again, or call twice), `saving` (what a loop keeps).
"""

from sparsetrain.optim.formula import Formula as Formula
from sparsetrain.optim.formula import Slot as Slot
from sparsetrain.optim.formula import maximum as maximum
from sparsetrain.optim.formula import minimum as minimum
from sparsetrain.optim.formula import sqrt as sqrt
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
from sparsetrain.optim.schedules import Schedule as Schedule
from sparsetrain.optim.schedules import constant as constant
from sparsetrain.optim.schedules import cosine as cosine
from sparsetrain.optim.schedules import inverse_sqrt as inverse_sqrt
from sparsetrain.optim.schedules import polynomial as polynomial
from sparsetrain.optim.schedules import step_decay as step_decay
from sparsetrain.optim.schedules import warmup as warmup
from sparsetrain.optim.state import State as State
from sparsetrain.optim.step import Applied as Applied
from sparsetrain.optim.table_update import TableUpdate as TableUpdate
from sparsetrain.system.exports import public_names as _public_names

# Name, as in settings and saved runs -> constructor.
OPTIMIZERS = {
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

__all__, __dir__ = _public_names(globals())
