# SPDX-License-Identifier: Apache-2.0
"""Optimizers as values: a formula each, from which the dense and the row kernel are made.

Read `adagrad` (a formula), `kernels` (how it becomes kernels), `optimizer` (how they are applied).
"""

from sparsetrain.optim.adagrad import adagrad as adagrad
from sparsetrain.optim.formula import Formula as Formula
from sparsetrain.optim.formula import Slot as Slot
from sparsetrain.optim.formula import sqrt as sqrt
from sparsetrain.optim.optimizer import Optimizer as Optimizer
from sparsetrain.optim.rowwise_adagrad import rowwise_adagrad as rowwise_adagrad
from sparsetrain.optim.sgd import sgd as sgd

# Name, as in settings and saved runs -> constructor.
OPTIMIZERS = {"sgd": sgd, "adagrad": adagrad, "rowwise_adagrad": rowwise_adagrad}
