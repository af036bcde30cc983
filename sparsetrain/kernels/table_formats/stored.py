# SPDX-License-Identifier: Apache-2.0
"""Tables as they are stored: kernels read an element as its number, and rows of int8 are made here.

A row of int8 is D bytes, then a float32 scale and a float32 offset: ``w = scale * byte + offset``,
on a scale of 256 steps of its own. The least number of a row is byte 0, the greatest 255, and each
is off by at most half a step, a 510th of the row's range. The rule and the layout are those of
FBGEMM's row-wise quantisation, https://github.com/pytorch/FBGEMM. Everything a lookup needs of a
row lies side by side. Cost of making them: one pass, in blocks of `BLOCK` rows.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from tvm import tirx
from tvm.script.ir_builder import tirx as T

from sparsetrain.kernels.table_formats.half import widened
from sparsetrain.kernels.table_formats.names import BITS, EXTRA, HALVES, INT8_ROWS

Read = Callable[[Any, Any, Any], Any]


def width_of(stored: int, dtype: str) -> int:
    """D, the numbers in a row of a table whose second extent is `stored`."""
    return stored - EXTRA if dtype == INT8_ROWS else stored


def stored_width(width: int, dtype: str) -> int:
    """The second extent of a table of rows of `width` numbers."""
    return width + EXTRA if dtype == INT8_ROWS else width


def read_element(table: Any, row: Any, column: Any) -> Any:
    """The number at (row, column) of a table of any dtype."""
    dtype = str(table.dtype)
    return _READ.get(dtype, _read_plain)(table, row, column)


def _read_plain(table: Any, row: Any, column: Any) -> Any:
    return table[row, column]


def _read_half(table: Any, row: Any, column: Any) -> Any:
    return widened(T.reinterpret(BITS, table[row, column]), str(table.dtype))


def _read_byte(table: Any, row: Any, column: Any) -> Any:
    width = int(table.shape[1]) - EXTRA
    scale, offset = (_read_float(table, row, width + at) for at in (0, 4))
    return scale * tirx.Cast("float32", table[row, column]) + offset


def _read_float(table: Any, row: Any, first: int) -> Any:
    """A float32 of four bytes, the lowest first; LLVM makes one load of it."""
    parts = [tirx.Cast("uint32", table[row, first + n]) << (8 * n) for n in range(4)]
    return T.reinterpret("float32", parts[0] | parts[1] | parts[2] | parts[3])


_READ: dict[str, Read] = {INT8_ROWS: _read_byte, **dict.fromkeys(HALVES, _read_half)}


BLOCK = 1 << 16
STEPS = 255
LARGEST = 1e38  # of a number in a row: the range of the row must be a float32


class NoScale(NamedTuple):
    """The first row that holds NaN, infinity or a number beyond `LARGEST`."""

    row: int


def quantize_rows_(out: np.ndarray, table: np.ndarray) -> NoScale | None:
    """Fill `out` with the rows of a table, or say which row has no scale.

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
    """(n, D) float32 -> (n, D + 8) uint8."""
    low = rows.min(axis=1, keepdims=True).astype(np.float64)
    span = rows.max(axis=1, keepdims=True) - low
    scale = (span / STEPS).astype(np.float32)
    # By the scale that is stored; of a row of equal numbers, or nearly, every byte is 0.
    steps = (rows - low) / np.where(scale > 0, scale, np.inf).astype(np.float64)
    numbers = np.clip(np.rint(steps), 0, STEPS).astype(np.uint8)
    ends = np.concatenate([scale, low.astype(np.float32)], axis=1).astype("<f4")
    return np.concatenate([numbers, ends.view(np.uint8).reshape(len(rows), EXTRA)], axis=1)
