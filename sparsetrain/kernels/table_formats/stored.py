# SPDX-License-Identifier: Apache-2.0
"""Tables inside kernels: an element is read as the number it stands for, whatever it is stored as.

A row of int8 is D bytes, then a float32 scale and a float32 offset: ``w = scale * byte + offset``,
the layout of FBGEMM's row-wise int8. Everything a lookup needs of a row lies side by side.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

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
