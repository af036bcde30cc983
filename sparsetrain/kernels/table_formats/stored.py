# SPDX-License-Identifier: Apache-2.0
"""Dtypes of stored tables, the dtypes of computations with them, and how kernels read them.

A half-precision table is read into float32 and rounded when a row is written; gradients, slots and
activations are float32. Kernels see its numbers as 16-bit integers and convert them with integer
arithmetic: the same bits on every target, with or without half-precision instructions. Each row of
bytes has its scale next to its numbers, so that a lookup reads one location. Tables in "int8" train
(`int8`). Tables in "uint8" are for prediction alone: a row is D bytes, then a float32 scale and a
float32 offset, ``w = scale * byte + offset``, with 256 steps from the row's least number (byte 0)
to its greatest (255); the error is at most half a step, 1/510 of the row's range. Rule and layout
are FBGEMM's row-wise quantisation, https://github.com/pytorch/FBGEMM. Cost: one pass, in blocks of
`BLOCK` rows.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, NamedTuple, TypeAlias

import ml_dtypes
import numpy as np
from tvm import tirx
from tvm.script.ir_builder import tirx as T

from sparsetrain.backend import backend_of
from sparsetrain.errors import ConfigError
from sparsetrain.kernels.table_formats.half import BITS, widened
from sparsetrain.kernels.table_formats.int8 import (
    SCALE,
    floats_of_rows,
    rows_of_floats,
)

TableDtype: TypeAlias = Literal["float32", "bfloat16", "float16", "int8", "uint8"]

# The 16-bit floating-point formats.
HALVES = {"bfloat16": np.dtype(ml_dtypes.bfloat16), "float16": np.dtype(np.float16)}
INT8, FOR_PREDICTION = "int8", "uint8"
TABLE_DTYPES = ("float32", *HALVES, INT8)  # trainable
EXTRA = 8  # additional bytes per row of a table for prediction
_BESIDE = {INT8: SCALE, FOR_PREDICTION: EXTRA}


def is_half(dtype: str) -> bool:
    """Whether a dtype is one of the 16-bit formats."""
    return dtype in HALVES


def is_rounded(dtype: str) -> bool:
    """Whether rows are computed in float32 and rounded stochastically on writes."""
    return is_half(dtype) or dtype == INT8


def has_scales(dtype: str) -> bool:
    """Whether each row stores a scale with its numbers."""
    return dtype in _BESIDE


def computed_in(dtype: str) -> str:
    """Return the dtype of computations with a table: float32, or its own if that is wider."""
    return "float32" if dtype in (*HALVES, *_BESIDE) else dtype


def seen_as(dtype: str) -> str:
    """Return the dtype that kernels declare for an array of `dtype`."""
    return BITS if dtype in HALVES else dtype


def numpy_dtype(dtype: str) -> np.dtype:
    """Return NumPy's dtype of a name, bfloat16 included."""
    return HALVES[dtype] if dtype in HALVES else np.dtype(dtype)


def check_target(dtype: str, target: Any) -> None:
    """Refuse a table dtype for which a target has no kernels.

    Raises
    ------
    ConfigError
        Names both, and the fix.
    """
    backend = backend_of(target)
    if dtype not in backend.row_formats:
        raise ConfigError(
            f"target {backend.kind!r} has no kernels for tables in {dtype}: use target 'cpu', or "
            "float32 tables"
        )


def check_trainable(dtype: str) -> None:
    """Refuse to train tables that are read-only.

    Raises
    ------
    ConfigError
        Names the alternatives.
    """
    if dtype == FOR_PREDICTION:
        raise ConfigError(
            "tables in uint8 are for prediction only: train the model that they were made from, "
            "or one with table_dtype='int8'"
        )


def check_table_dtype(dtype: object, place: str) -> None:
    """Refuse dtypes in which no table can be stored.

    Raises
    ------
    ConfigError
        Names the place, the value and the supported dtypes.
    """
    if dtype not in (*TABLE_DTYPES, FOR_PREDICTION):
        known = ", ".join(repr(name) for name in TABLE_DTYPES)
        raise ConfigError(f"{place}: table_dtype must be one of {known}, not {dtype!r}")


Read = Callable[[Any, Any, Any], Any]


def width_of(stored: int, dtype: str) -> int:
    """D, the number of weights in a row that is `stored` wide."""
    return stored - _BESIDE.get(dtype, 0)


def stored_width(width: int, dtype: str) -> int:
    """The stored width of a row of `width` weights."""
    return width + _BESIDE.get(dtype, 0)


def stored_rows(rows: np.ndarray, dtype: str) -> np.ndarray:
    """Rows (n, D) of float32 converted to a table's dtype, rounded to nearest."""
    return rows_of_floats(rows) if dtype == INT8 else rows.astype(numpy_dtype(dtype))


def floats_of(rows: np.ndarray) -> np.ndarray:
    """Return a copy of rows of a trainable table as (n, D) float32."""
    return floats_of_rows(rows) if str(rows.dtype) == INT8 else rows.astype(np.float32)


def read_element(table: Any, row: Any, column: Any) -> Any:
    """Read the number at (row, column) of a table of any dtype."""
    dtype = str(table.dtype)
    return _READ.get(dtype, _read_plain)(table, row, column)


def _read_plain(table: Any, row: Any, column: Any) -> Any:
    return table[row, column]


def _read_half(table: Any, row: Any, column: Any) -> Any:
    return widened(T.reinterpret(BITS, table[row, column]), str(table.dtype))


def _read_byte(table: Any, row: Any, column: Any) -> Any:
    width = int(table.shape[1]) - EXTRA
    scale, offset = (read_float(table, row, width + at) for at in (0, 4))
    return scale * tirx.Cast("float32", table[row, column]) + offset


def _read_int8(table: Any, row: Any, column: Any) -> Any:
    scale = read_float(table, row, int(table.shape[1]) - SCALE)
    return scale * tirx.Cast("float32", table[row, column])


def read_float(table: Any, row: Any, first: int) -> Any:
    """Read a little-endian float32 from four bytes, which LLVM turns into one load."""
    parts = [_unsigned(table[row, first + n]) << (8 * n) for n in range(4)]
    return T.reinterpret("float32", parts[0] | parts[1] | parts[2] | parts[3])


def _unsigned(byte: Any) -> Any:
    wide = tirx.Cast("uint32", byte)
    return wide if str(byte.ty.dtype) == "uint8" else wide & 0xFF


_READ: dict[str, Read] = {
    INT8: _read_int8,
    FOR_PREDICTION: _read_byte,
    **dict.fromkeys(HALVES, _read_half),
}


BLOCK = 1 << 16
STEPS = 255
LARGEST = 1e38  # largest magnitude in a row: the row's range must fit float32


class NoScale(NamedTuple):
    """The number of the first row with NaN, infinity or a number beyond `LARGEST`."""

    row: int


def quantize_rows_(out: np.ndarray, table: np.ndarray) -> NoScale | None:
    """Fill `out` with the quantized rows of a table; return `NoScale` if a row has no scale.

    Parameters
    ----------
    out : (V, D + 8) uint8
        Written.
    table : (V, D) float32, bfloat16 or float16
    """
    for first in range(0, len(table), BLOCK):
        rows = table[first : first + BLOCK].astype(np.float32)
        bad = np.flatnonzero(~(np.abs(rows) <= LARGEST).all(axis=1))
        if len(bad):
            return NoScale(first + int(bad[0]))
        out[first : first + BLOCK] = _quantized(rows)
    return None


def _quantized(rows: np.ndarray) -> np.ndarray:
    """Quantize (n, D) float32 to (n, D + 8) uint8."""
    low = rows.min(axis=1, keepdims=True).astype(np.float64)
    span = rows.max(axis=1, keepdims=True) - low
    scale = (span / STEPS).astype(np.float32)
    # Uses the stored scale; in a row of (nearly) equal numbers every byte is 0.
    steps = (rows - low) / np.where(scale > 0, scale, np.inf).astype(np.float64)
    numbers = np.clip(np.rint(steps), 0, STEPS).astype(np.uint8)
    ends = np.concatenate([scale, low.astype(np.float32)], axis=1).astype("<f4")
    return np.concatenate([numbers, ends.view(np.uint8).reshape(len(rows), EXTRA)], axis=1)
