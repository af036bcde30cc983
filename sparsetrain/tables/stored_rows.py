# SPDX-License-Identifier: Apache-2.0
"""Rows of a table inside a kernel that updates them: how each format is read and written.

A row is opened, its weights are read; then `begin` comes before the first write, `end` after the
last. Formats below float32 are rounded by random bits that depend on the step, the row and the
column alone (`sparsetrain.kernels.table_formats`).
"""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, Protocol

from tvm import tirx
from tvm.script.ir_builder import tirx as T

from sparsetrain.kernels.table_formats import is_half
from sparsetrain.kernels.table_formats.half import narrowed, widened
from sparsetrain.kernels.table_formats.noise import element_bits, holding, row_bits


class Stored(Protocol):
    """The weights of a parameter, seen as (rows, columns)."""

    weight: Any
    width: Any
    stored: str
    place: tuple[Any, Any] | None

    def tiles(self) -> tuple[int, int]:
        """Number of vectors in a row, and the columns of each."""


class PlainRow:
    """A row in the dtype of the arithmetic; `h` has the keys of the random bits of others."""

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
        """Store what depends on all weights of the row."""

    def _noise(self) -> Noise:
        parameter = self.parameter
        row, first = (self.row, 0) if parameter.place is None else parameter.place
        return Noise(self.h.keys, row, parameter.tiles()[1], first)


class HalfRow(PlainRow):
    """A row in half precision."""

    def read(self, column: Any) -> Any:
        """Read one weight."""
        return T.Bind(widened(super().read(column), self.parameter.stored))

    def begin(self) -> None:
        """Prepare to write."""
        self._bits = self._noise()

    def write(self, column: Any, value: Any) -> None:
        """Store one weight, rounded."""
        super().write(column, narrowed(value, self._bits.at(column), self.parameter.stored))


def stored_row(parameter: Stored, row: Any, h: SimpleNamespace) -> PlainRow:
    """Open a row of a parameter, in the step of `h`."""
    return (HalfRow if is_half(parameter.stored) else PlainRow)(parameter, row, h)


class Noise:
    """The random bits of a row in one step, for vectors of `lanes`.

    Columns are counted from `first` on.
    """

    def __init__(self, keys: Sequence[Any], row: Any, lanes: int, first: Any = 0) -> None:
        self._lanes, self._first = lanes, first
        self._words = T.alloc_local((lanes,), "uint32")
        self._row = row_bits(keys, row, holding(T.alloc_local((1,), "uint32"), 0))

    def at(self, column: Any) -> Any:
        """Bits of an element, valid until the next call."""
        lane = tirx.floormod(column, self._lanes)
        return element_bits(self._row, self._first + column, holding(self._words, lane))
