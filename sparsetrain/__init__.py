# SPDX-License-Identifier: Apache-2.0
"""Train recommendation models on Apache TVM with row-sparse gradients.

Letters in shapes: B batch, F features, V rows of a table, D width, N looked-up ids, U unique rows.

Importing this package imports no TVM: each public name is loaded when it is first used.
"""

import gc
from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from sparsetrain import ad as ad
    from sparsetrain import data as data
    from sparsetrain import embedding as embedding
    from sparsetrain import errors as errors
    from sparsetrain import metrics as metrics
    from sparsetrain import models as models
    from sparsetrain import optim as optim
    from sparsetrain import runtime as runtime
    from sparsetrain.compiler import precision as precision
    from sparsetrain.compiler.program import Program as Program
    from sparsetrain.compiler.program import value_and_grad as value_and_grad
    from sparsetrain.runtime import set_num_threads as set_num_threads
    from sparsetrain.sparse_tensor import RowSparse as RowSparse
    from sparsetrain.system import blas_threads as pools  # noqa: F401
    from sparsetrain.training.fit import EarlyStopping as EarlyStopping
    from sparsetrain.training.load import load as load
    from sparsetrain.training.load import load_predictor as load_predictor
    from sparsetrain.training.profile import StepProfile as StepProfile
    from sparsetrain.training.quantized import QuantizedModel as QuantizedModel
    from sparsetrain.training.run import Run as Run
    from sparsetrain.training.trainer import Trainer as Trainer

# Public module, and public name -> the module that defines it.
_MODULES = {
    "ad": "sparsetrain.ad",
    "compare": "sparsetrain.compare",
    "data": "sparsetrain.data",
    "embedding": "sparsetrain.embedding",
    "errors": "sparsetrain.errors",
    "metrics": "sparsetrain.metrics",
    "models": "sparsetrain.models",
    "optim": "sparsetrain.optim",
    "pools": "sparsetrain.system.blas_threads",
    "precision": "sparsetrain.compiler.precision",
    "runtime": "sparsetrain.runtime",
}
_NAMES = {
    "EarlyStopping": "sparsetrain.training.fit",
    "Program": "sparsetrain.compiler.program",
    "QuantizedModel": "sparsetrain.training.quantized",
    "RowSparse": "sparsetrain.sparse_tensor",
    "Run": "sparsetrain.training.run",
    "StepProfile": "sparsetrain.training.profile",
    "Trainer": "sparsetrain.training.trainer",
    "load": "sparsetrain.training.load",
    "load_predictor": "sparsetrain.training.load",
    "set_num_threads": "sparsetrain.runtime",
    "value_and_grad": "sparsetrain.compiler.program",
}

__all__ = ["__version__", *sorted(_MODULES | _NAMES)]  # noqa: PLE0604


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        value = _loaded(_MODULES[name])
    elif name in _NAMES:
        value = getattr(_loaded(_NAMES[name]), name)
    else:
        raise AttributeError(f"module 'sparsetrain' has no attribute {name!r}")
    globals()[name] = value
    return value


def _loaded(name: str) -> Any:
    """A module; what it makes stays, so looking through it for garbage would be in vain.

    That is a fifth of what it takes to import TVM.
    """
    if not gc.isenabled():
        return import_module(name)
    gc.disable()
    try:
        return import_module(name)
    finally:
        gc.enable()


def __dir__() -> list[str]:
    return sorted([*globals(), *_MODULES, *_NAMES])
