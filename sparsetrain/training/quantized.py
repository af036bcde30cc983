# SPDX-License-Identifier: Apache-2.0
"""`QuantizedModel`: a trained model with int8 tables, for predictions and saving.

A row of a table takes D + 8 bytes instead of 4 D, and optimizer slots are not copied. Tables that
were trained in int8 stay unchanged, and layers stay float32. Quantizing a model takes one pass over
the tables, and memory for both models.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn

from sparsetrain import checkpoint
from sparsetrain.compiler.precision.arithmetic import Arithmetic
from sparsetrain.errors import ConfigError
from sparsetrain.kernels.table_formats import INT8, UINT8, TableFormat
from sparsetrain.models.model_checks import table_format_of
from sparsetrain.runtime.tensors import copy_, to_device
from sparsetrain.tables.state_dict import BESIDE, Kind
from sparsetrain.training.predictor import Predictor
from sparsetrain.training.save import QUANTIZED, describe


class QuantizedModel(Predictor):
    """A model with int8 tables that evaluates and predicts; made by `Trainer.quantized`."""

    def save(self, folder: str | Path, extra: Mapping[str, Any] | None = None) -> None:
        """Write model and encoder to a folder that `sparsetrain.load_predictor` can read."""
        with describe(self, QUANTIZED, extra or {}) as saved:
            checkpoint.write(folder, *saved)

    def step(self, *_: Any, **__: Any) -> NoReturn:
        """Raise `ConfigError`: quantized tables cannot be trained."""
        UINT8.require_trainable()
        raise AssertionError("int8 is for prediction")

    fit = step


def quantized(trained: Any) -> QuantizedModel:
    """Return a model for prediction only, with int8 tables of D + 8 bytes per row.

    It predicts on the same target, in the same precision. If several processes train, each
    returns a model with all rows.

    Raises
    ------
    ConfigError
        If the model's class does not accept ``table_dtype``.
    NumericalError
        If a row of a table is not finite.
    """
    same = table_format_of(trained.model) is INT8
    model = _for_prediction(trained.model, INT8 if same else UINT8)
    arithmetic = Arithmetic(trained.precision, trained.target)
    made = QuantizedModel(model, trained.target, trained.encoder, arithmetic, initialize=False)
    made.steps, made.epochs = trained.steps, trained.epochs
    source = trained._weights()
    for name, weight in made.params.weights.items():
        table, own = trained.params.table(name), source[name]
        rows = table.as_int8(own) if table.named and not same else own
        rows = trained.parallel.whole({name: rows}, (name,))[name]
        if rows is own:  # `own` will change in further training
            copy_(weight, rows)
        else:
            made.params[name] = to_device(rows, weight.device)
    return made


def _for_prediction(model: Any, stored: TableFormat) -> Any:
    """Return the same model, without parameters, with tables of this format."""
    made = type(model)
    try:
        again = made(**{**model.config(), "table_dtype": stored.dtype})
    except TypeError:  # all other arguments were already checked
        again = None
    if again is None or again.config().get("table_dtype") != stored.dtype:
        raise ConfigError(
            f"{made.__name__} has no table_dtype, so its tables cannot be int8: derive it from "
            "ClickModel, pass **rest to super().__init__, and include super().config() in config()"
        )
    return again


def named_as_now(config: dict[str, Any], kinds: Mapping[str, Kind]) -> dict[str, Any]:
    """Return a saved model's configuration, with today's name of its table format.

    Older versions called the format for prediction "int8". `kinds` are the saved arrays' kinds.
    """
    tables = (dtype for name, (_, dtype) in kinds.items() if not name.startswith(BESIDE))
    if config.get("table_dtype") == INT8.dtype and UINT8.array in tables:
        return {**config, "table_dtype": UINT8.dtype}
    return config
