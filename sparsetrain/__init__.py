# SPDX-License-Identifier: Apache-2.0
"""Train recommendation models on Apache TVM with row-sparse gradients.

Letters in shapes: B batch, F features, V rows of a table, D width, N looked-up ids, U unique rows.
"""

import ast
import gc
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

__version__ = "0.1.0"

# Importing this package does not import TVM: a public name is loaded when it is first used. Type
# checkers read these imports; at run time `_HOMES` is parsed from the same lines.
if TYPE_CHECKING:
    from sparsetrain import ad as ad
    from sparsetrain import compare as compare
    from sparsetrain import data as data
    from sparsetrain import embedding as embedding
    from sparsetrain import errors as errors
    from sparsetrain import labels as labels
    from sparsetrain import metrics as metrics
    from sparsetrain import models as models
    from sparsetrain import optim as optim
    from sparsetrain import parallel as parallel
    from sparsetrain import runtime as runtime
    from sparsetrain import tables as tables
    from sparsetrain import torch as torch
    from sparsetrain.compiler import precision as precision
    from sparsetrain.compiler.program import Program as Program
    from sparsetrain.compiler.program import value_and_grad as value_and_grad
    from sparsetrain.data import Batch as Batch
    from sparsetrain.runtime import set_num_threads as set_num_threads
    from sparsetrain.sparse_tensor import RowSparse as RowSparse
    from sparsetrain.torch.from_torch import from_torch as from_torch
    from sparsetrain.training import loggers as loggers
    from sparsetrain.training.fit import EarlyStopping as EarlyStopping
    from sparsetrain.training.fit import ReduceLROnPlateau as ReduceLROnPlateau
    from sparsetrain.training.importance import permutation_importance as permutation_importance
    from sparsetrain.training.load import load as load
    from sparsetrain.training.load import load_predictor as load_predictor
    from sparsetrain.training.predictor import Predictor as Predictor
    from sparsetrain.training.profile import StepProfile as StepProfile
    from sparsetrain.training.quantized import QuantizedModel as QuantizedModel
    from sparsetrain.training.run import Run as Run
    from sparsetrain.training.trainer import Trainer as Trainer

# Public name -> the module that it is imported from.
_HOMES = {
    alias.name: str(node.module)
    for node in ast.walk(ast.parse(Path(__file__).read_text(encoding="utf-8")))
    if isinstance(node, ast.ImportFrom)
    for alias in node.names
    if alias.asname == alias.name
}

__all__ = ["__version__", *sorted(_HOMES)]  # noqa: PLE0604


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module 'sparsetrain' has no attribute {name!r}")
    home = _HOMES[name]
    names = vars(_load(home))
    value = globals()[name] = names[name] if name in names else _load(f"{home}.{name}")
    return value


def _load(module: str) -> object:
    """Import a module with garbage collection off, which saves 5 % of the import of TVM."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        return import_module(module)
    finally:
        if enabled:
            gc.enable()


def __dir__() -> list[str]:
    return __all__
