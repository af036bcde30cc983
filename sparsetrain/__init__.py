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
    from sparsetrain import pools as pools
    from sparsetrain import precision as precision
    from sparsetrain import runtime as runtime
    from sparsetrain.build import Program as Program
    from sparsetrain.build import value_and_grad as value_and_grad
    from sparsetrain.fit import EarlyStopping as EarlyStopping
    from sparsetrain.loading import load as load
    from sparsetrain.loading import load_predictor as load_predictor
    from sparsetrain.profile import StepProfile as StepProfile
    from sparsetrain.quantized import QuantizedModel as QuantizedModel
    from sparsetrain.run import Run as Run
    from sparsetrain.runtime import set_num_threads as set_num_threads
    from sparsetrain.sparse_tensor import RowSparse as RowSparse
    from sparsetrain.trainer import Trainer as Trainer

# Public name -> module that defines it; a module stands for itself.
_PUBLIC = {
    "ad": "sparsetrain.ad",
    "compare": "sparsetrain.compare",
    "data": "sparsetrain.data",
    "errors": "sparsetrain.errors",
    "embedding": "sparsetrain.embedding",
    "metrics": "sparsetrain.metrics",
    "models": "sparsetrain.models",
    "optim": "sparsetrain.optim",
    "pools": "sparsetrain.pools",
    "precision": "sparsetrain.precision",
    "runtime": "sparsetrain.runtime",
    "EarlyStopping": "sparsetrain.fit",
    "Program": "sparsetrain.build",
    "QuantizedModel": "sparsetrain.quantized",
    "RowSparse": "sparsetrain.sparse_tensor",
    "Run": "sparsetrain.run",
    "StepProfile": "sparsetrain.profile",
    "Trainer": "sparsetrain.trainer",
    "load": "sparsetrain.loading",
    "load_predictor": "sparsetrain.loading",
    "set_num_threads": "sparsetrain.runtime",
    "value_and_grad": "sparsetrain.build",
}

__all__ = ["__version__", *sorted(_PUBLIC)]  # noqa: PLE0604


def __getattr__(name: str) -> Any:
    if name not in _PUBLIC:
        raise AttributeError(f"module 'sparsetrain' has no attribute {name!r}")
    module = _loaded(_PUBLIC[name])
    value = module if module.__name__ == f"sparsetrain.{name}" else getattr(module, name)
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
    return sorted([*globals(), *_PUBLIC])
