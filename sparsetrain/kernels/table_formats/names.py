# SPDX-License-Identifier: Apache-2.0
"""The dtypes that tables may be stored in, and what they are computed in.

A half-precision table is read into float32 and rounded when a row is written; gradients, slots and
activations are float32. Kernels see its numbers as 16-bit integers and convert them by integer
arithmetic: the same bits on every target, with or without instructions for them. Rows of int8 are
for prediction alone.
"""

from __future__ import annotations

from typing import Any, Literal, TypeAlias

import ml_dtypes
import numpy as np

from sparsetrain.errors import ConfigError

TableDtype: TypeAlias = Literal["float32", "bfloat16", "float16", "int8"]

BITS = "uint16"  # how kernels see a half
INT8_ROWS = "uint8"  # dtype of the array of a table of "int8", see `stored`
EXTRA = 8  # bytes of a row of int8 beside its numbers


# The 16-bit floating-point formats.
HALVES = {"bfloat16": np.dtype(ml_dtypes.bfloat16), "float16": np.dtype(np.float16)}
TABLE_DTYPES = ("float32", *HALVES)
FOR_PREDICTION = "int8"


def is_half(dtype: str) -> bool:
    """Whether a dtype is one of the 16-bit formats."""
    return dtype in HALVES


def computed_in(dtype: str) -> str:
    """The dtype that a table's numbers are computed in: float32, or its own if that is wider."""
    return "float32" if dtype in (*HALVES, INT8_ROWS) else dtype


def seen_as(dtype: str) -> str:
    """The dtype that kernels declare for an array of some dtype."""
    return BITS if dtype in HALVES else dtype


def array_of(rows: int, width: int, dtype: str) -> tuple[tuple[int, int], str]:
    """Shape and dtype of the array that holds a table of some dtype, "int8" among them."""
    return ((rows, width + EXTRA), INT8_ROWS) if dtype == FOR_PREDICTION else ((rows, width), dtype)


def numpy_dtype(dtype: str) -> np.dtype:
    """NumPy's dtype of a name, bfloat16 included."""
    return HALVES[dtype] if dtype in HALVES else np.dtype(dtype)


def target_word(dtype: str, target: Any) -> Any:
    """What a user's target means for tables of a dtype: "auto" is the CPU where others lack it."""
    return "cpu" if target == "auto" and dtype != "float32" else target


def check_target(dtype: str, target: str) -> None:
    """Refuse a dtype of tables that a kind of target has no kernels for.

    Raises
    ------
    ConfigError
        Names both and the way out.
    """
    if target == "cuda" and dtype != "float32":
        raise ConfigError(
            f"tables in {dtype} have kernels for the CPU alone: take target 'cpu', or float32"
        )


def check_trainable(dtype: str) -> None:
    """Refuse to train tables that can only be read.

    Raises
    ------
    ConfigError
        Says what to train instead.
    """
    if dtype == FOR_PREDICTION:
        raise ConfigError(
            "tables in int8 are for prediction alone: train the model that they were made from"
        )


def check_table_dtype(dtype: object, place: str) -> None:
    """Refuse what no table is stored in.

    Raises
    ------
    ConfigError
        Names the place, the value and the dtypes that there are.
    """
    if dtype not in (*TABLE_DTYPES, FOR_PREDICTION):
        known = ", ".join(repr(name) for name in TABLE_DTYPES)
        raise ConfigError(f"{place}: table_dtype is one of {known}, not {dtype!r}")
