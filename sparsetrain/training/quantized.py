# SPDX-License-Identifier: Apache-2.0
"""`QuantizedModel`: a trained model with tables in rows of int8, to predict with and to save.

A row takes D + 8 bytes in place of 4 D, and slots are left behind. All layers stay float32. Cost of
making one: a pass over the tables, and the memory of both models meanwhile.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn

from sparsetrain import checkpoint
from sparsetrain.compiler.precision.arithmetic import Arithmetic
from sparsetrain.errors import ConfigError
from sparsetrain.kernels.table_formats import FOR_PREDICTION, check_trainable
from sparsetrain.runtime.tensors import copy_
from sparsetrain.tables.int8 import quantize_
from sparsetrain.training.predictor import Predictor
from sparsetrain.training.save import QUANTIZED, describe


class QuantizedModel(Predictor):
    """Evaluates and predicts as the model that it was made from; from `Trainer.quantized`."""

    def save(self, folder: str | Path, extra: Mapping[str, Any] | None = None) -> None:
        """Write model and encoder to a folder, which `sparsetrain.load_predictor` reads."""
        with describe(self, QUANTIZED, extra or {}) as saved:
            checkpoint.write(folder, *saved)

    def step(self, *_: Any, **__: Any) -> NoReturn:
        """Raise `ConfigError`: what is lost by quantisation cannot be trained on."""
        check_trainable(FOR_PREDICTION)
        raise AssertionError("int8 is for prediction")

    fit = step


def quantize(trained: Predictor) -> QuantizedModel:
    """Make one of a model with current rows; see `Trainer.quantized`."""
    model = _for_prediction(trained.model)
    arithmetic = Arithmetic(trained.precision, trained.target)
    made = QuantizedModel(model, trained.target, trained.encoder, arithmetic, initialize=False)
    made.steps, made.epochs = trained.steps, trained.epochs
    source = trained._weights()
    for table in made.params.each():
        if table.parts:
            quantize_(table, source[table.name])
        else:
            copy_(table.weight, source[table.name])
    return made


def _for_prediction(model: Any) -> Any:
    """The same model with tables in int8, without arrays."""
    made = type(model)
    try:
        again = made(**{**model.config(), "table_dtype": FOR_PREDICTION})
    except TypeError:  # all else it has taken before
        again = None
    if again is None or again.config().get("table_dtype") != FOR_PREDICTION:
        raise ConfigError(
            f"{made.__name__} has no table_dtype, so that its tables cannot be int8: let it be a "
            "ClickModel whose constructor passes **rest to super().__init__, and whose config() "
            "has super().config()"
        )
    return again
