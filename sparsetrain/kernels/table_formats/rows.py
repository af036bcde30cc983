# SPDX-License-Identifier: Apache-2.0
"""A row of a table inside a kernel that updates it.

A kernel opens a row and reads its weights, then calls `begin` before the first write and `end`
after the last. Each format's file defines its row class.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, Protocol

from tvm import tirx
from tvm.script.ir_builder import tirx as T

from sparsetrain.kernels.table_formats.noise import element_bits, holding, row_bits


class Stored(Protocol):
    """The weights of a parameter, viewed as (rows, columns)."""

    weight: Any
    width: Any
    place: tuple[Any, Any] | None

    @property
    def stored(self) -> Any:
        """The `TableFormat` of the weights."""

    def tiles(self) -> tuple[int, int]:
        """Number of vectors in a row, and the columns of each."""


class PlainRow:
    """A row in the dtype of the arithmetic.

    `h.keys` are the keys of the random bits. If `h` has `numbers`, row i draws the bits of row
    ``numbers[0] + numbers[1] i``.
    """

    def __init__(self, parameter: Stored, row: Any, h: SimpleNamespace) -> None:
        self.parameter, self.row, self.h = parameter, row, h

    def read(self, column: Any) -> Any:
        """Read one weight."""
        return self.parameter.weight[self.row, column]

    def begin(self) -> None:
        """Prepare to write."""

    def write(self, column: Any, value: Any) -> None:
        """Store one weight."""
        T.buffer_store(self.parameter.weight, value, [self.row, column])

    def end(self) -> None:
        """Store values that depend on all weights of the row."""

    def _noise(self) -> Noise:
        parameter = self.parameter
        row, first = (self.row, 0) if parameter.place is None else parameter.place
        if hasattr(self.h, "numbers"):
            row = T.Bind(self.h.numbers[0] + self.h.numbers[1] * row)
        return Noise(self.h.keys, row, parameter.tiles()[1], first)


class Noise:
    """The random bits of a row in one step, for vectors of `lanes`.

    Columns are counted from `first` on.
    """

    def __init__(self, keys: Sequence[Any], row: Any, lanes: int, first: Any = 0) -> None:
        self._lanes, self._first = lanes, first
        self._words = T.alloc_local((lanes,), "uint32")
        self._row = row_bits(keys, row, holding(T.alloc_local((1,), "uint32"), 0))

    def at(self, column: Any) -> Any:
        """Return the bits of an element, valid until the next call."""
        lane = tirx.floormod(column, self._lanes)
        return element_bits(self._row, self._first + column, holding(self._words, lane))


def read_plain(table: Any, row: Any, column: Any) -> Any:
    """Read the number at (row, column) of a table in the dtype of the arithmetic."""
    return table[row, column]


def read_float(table: Any, row: Any, first: int) -> Any:
    """Read a little-endian float32 from four bytes, which LLVM turns into one load."""
    parts = [_unsigned(table[row, first + n]) << (8 * n) for n in range(4)]
    return T.reinterpret("float32", parts[0] | parts[1] | parts[2] | parts[3])


def _unsigned(byte: Any) -> Any:
    wide = tirx.Cast("uint32", byte)
    return wide if str(byte.ty.dtype) == "uint8" else wide & 0xFF
