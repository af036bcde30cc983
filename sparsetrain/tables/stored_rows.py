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

from sparsetrain.kernels.table_formats import INT8, is_half
from sparsetrain.kernels.table_formats import int8 as bytes_of
from sparsetrain.kernels.table_formats.half import narrowed, widened
from sparsetrain.kernels.table_formats.noise import element_bits, holding, row_bits
from sparsetrain.kernels.table_formats.stored import read_float


class Stored(Protocol):
    """The weights of a parameter, seen as (rows, columns)."""

    weight: Any
    width: Any
    stored: str
    place: tuple[Any, Any] | None

    def tiles(self) -> tuple[int, int]:
        """Number of vectors in a row, and the columns of each."""


class PlainRow:
    """A row in the dtype of the arithmetic; `h` has the keys of random bits."""

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


class Int8Row(PlainRow):
    """A row of int8: new weights stay in registers until their scale is known."""

    def __init__(self, parameter: Stored, row: Any, h: SimpleNamespace) -> None:
        super().__init__(parameter, row, h)
        self._scale = T.Bind(read_float(parameter.weight, row, parameter.width))

    def read(self, column: Any) -> Any:
        """Read one weight."""
        return T.Bind(self._scale * tirx.Cast("float32", super().read(column)))

    def begin(self) -> None:
        """Prepare to write."""
        self._new = T.alloc_local((self.parameter.width,), "float32")

    def write(self, column: Any, value: Any) -> None:
        """Keep one weight."""
        T.buffer_store(self._new, value, [column])

    def end(self) -> None:
        """Choose the scale, round and store the row."""
        weight, width = self.parameter.weight, self.parameter.width
        scale = bytes_of.scale_bits(self._largest())
        inverse = T.Bind(T.reinterpret("float32", bytes_of.inverse_bits(scale)))
        noise, (tiles, lanes) = self._noise(), self.parameter.tiles()
        with T.serial(0, tiles) as tile, T.vectorized(0, lanes) as lane:
            column = tile * lanes + lane
            number = bytes_of.narrowed(self._new[column], inverse, noise.at(column))
            T.buffer_store(weight, number, [self.row, column])
        for place in range(bytes_of.SCALE):
            byte = tirx.Cast("int8", (scale >> (8 * place)) & 0xFF)
            T.buffer_store(weight, byte, [self.row, width + place])

    def _largest(self) -> Any:
        """The bits of the largest magnitude of the new weights."""
        tiles, lanes = self.parameter.tiles()
        found = T.alloc_local((lanes,), "uint32")
        with T.vectorized(0, lanes) as lane:
            T.buffer_store(found, bytes_of.magnitude(self._new[lane]), [lane])
        with T.serial(0, tiles - 1) as tile, T.vectorized(0, lanes) as lane:
            size = bytes_of.magnitude(self._new[(tile + 1) * lanes + lane])
            T.buffer_store(found, tirx.max(found[lane], size), [lane])
        while lanes > 1:  # the upper half of the vector onto the lower
            half = (lanes + 1) // 2
            with T.vectorized(0, lanes - half) as lane:
                T.buffer_store(found, tirx.max(found[lane], found[half + lane]), [lane])
            lanes = half
        return T.Bind(found[0])


def stored_row(parameter: Stored, row: Any, h: SimpleNamespace) -> PlainRow:
    """Open a row of a parameter, in the step of `h`."""
    if is_half(parameter.stored):
        return HalfRow(parameter, row, h)
    return (Int8Row if parameter.stored == INT8 else PlainRow)(parameter, row, h)


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
