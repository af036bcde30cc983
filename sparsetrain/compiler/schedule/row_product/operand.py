# SPDX-License-Identifier: Apache-2.0
"""Operand of a product summed over rows, in memory and then in panels.

The first tile that needs a panel of a chunk reads the operand in place, stores the panel, and adds
it to the column sums if they are wanted: all of that fits beside its sums of products. Later tiles
read the panel.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

from tvm import DataType, tirx
from tvm.script.ir_builder import tirx as T

# Panels a power of two apart would evict each other.
_GAP_BYTES = 64


class Side:
    """An operand and a task's panels of it.

    Parameters
    ----------
    source : Buffer
        (K, columns).
    panels : tuple of int
        How many a task has; the rows and the columns of each.
    is_reused : bool
        Whether a panel is read again, and so worth keeping.
    sums : Buffer, optional
        (columns,), where the sums of the source's columns go.
    """

    def __init__(
        self, source: Any, panels: tuple[int, int, int], is_reused: bool, sums: Any
    ) -> None:
        most, chunk, width = panels
        self.source, self.width, self.is_reused, self.sums = source, width, is_reused, sums
        self.dtype = str(source.dtype)
        self._stride = chunk * width + _GAP_BYTES // DataType(self.dtype).itemsize
        self._packed = T.alloc_buffer((most * self._stride,), self.dtype)
        if sums is not None:
            self._totals = T.alloc_buffer((most * width,), self.dtype)
            with T.serial(wide(0), wide(most * width)) as n:
                T.buffer_store(self._totals, tirx.const(0, self.dtype), [n])

    def number(self, reading: Reading, row: tuple[Any, Any], column: int) -> Any:
        """A number of a row; `row` as below."""
        at = reading.shift + column
        if reading.is_first:
            return load(self.source, row[0], reading.column + at)
        return load(self._packed, self._place(reading.panel, row[1]) + at)

    def begin(self, reading: Reading) -> Any:
        """Sums of columns of a piece of a chunk, zero as yet; None if this tile takes none."""
        if self.sums is None or not reading.is_first:
            return None
        partial = T.alloc_buffer((reading.vectors * reading.lanes,), self.dtype)
        with reading.each() as at:
            T.buffer_store(partial, zeros(self.dtype, reading.lanes), [ramp(at, reading.lanes)])
        return partial

    def read(self, reading: Reading, row: tuple[Any, Any], partial: Any, into: Any = None) -> None:
        """Read a row of a panel, and pack it if this is the first time.

        Parameters
        ----------
        reading : Reading
            The panel, and its source.
        row : pair of Expr
            Its number in the source, and in the chunk.
        partial : Buffer, optional
            From `begin`: sums of columns that the row is added to.
        into : Buffer, optional
            Gets the row.
        """
        lanes = reading.lanes
        with reading.each() as at:
            own = ramp(at, lanes)
            packed = ramp(self._place(reading.panel, row[1]) + at, lanes)
            there = load(self.source, row[0], ramp(reading.column + at, lanes))
            value = T.Bind(there if reading.is_first else load(self._packed, packed))
            if reading.is_first and self.is_reused:
                T.buffer_store(self._packed, value, [packed])
            if partial is not None:
                T.buffer_store(partial, load(partial, own) + value, [own])
            if into is not None:
                T.buffer_store(into, value, [own])

    def finish(self, reading: Reading, partial: Any, writes: Any) -> None:
        """Add the values of `begin` to the sums so far; write them if `writes`.

        They are written with each piece of the last chunk, whole with the last one. Tasks side by
        side have the same sums, and one of them writes.
        """
        if partial is None:
            return
        lanes = reading.lanes
        with reading.each() as at:
            own, kept = ramp(at, lanes), ramp(reading.panel * self.width + at, lanes)
            total = T.Bind(load(self._totals, kept) + load(partial, own))
            T.buffer_store(self._totals, total, [kept])
            with T.If(writes), T.Then():
                T.buffer_store(self.sums, total, [ramp(reading.column + at, lanes)])

    def _place(self, panel: Any, row: Any) -> Any:
        return panel * self._stride + row * self.width


class Chunk(NamedTuple):
    """Rows `start` to ``start + count``; whether they are the first, and the last."""

    start: Any
    count: Any
    is_first: Any
    is_last: Any


class Reading(NamedTuple):
    """How a tile reads a side.

    Parameters
    ----------
    panel : Expr
        Its number in the task.
    column : Expr
        Where it begins in the source.
    vectors, lanes : int
        Of a row.
    is_first : bool
        Whether this tile is the first to read it.
    shift : Expr
        From there to the first number that the tile multiplies.
    """

    panel: Any
    column: Any
    vectors: int
    lanes: int
    is_first: bool
    shift: Any = 0

    @contextmanager
    def each(self) -> Iterator[Any]:
        """Write code once for every vector; gives where it begins."""
        with unrolled(self.vectors) as vector:
            yield vector * self.lanes


# Of one task.
_MOST_NUMBERS = 64


class Numbers:
    """Whole numbers that the compiler does not see through.

    TVM repeats a bound expression at every use, and nested ones grow exponentially. LLVM keeps
    values stored in an array in registers.
    """

    def __init__(self) -> None:
        self._array = T.alloc_buffer((_MOST_NUMBERS,), "int64")
        self._places = iter(range(_MOST_NUMBERS))

    def hold(self, value: Any) -> Any:
        """`value`, through an array."""
        place = wide(next(self._places))
        T.buffer_store(self._array, value, [place])
        return load(self._array, place)


def unrolled(times: int) -> Any:
    """A loop that TVM unrolls late, since the time of most passes grows with the code."""
    return T.unroll(wide(0), wide(times))


def zeros(dtype: str, lanes: int) -> Any:
    """A vector of zeros."""
    return tirx.Broadcast(tirx.const(0, dtype), lanes)


def load(source: Any, *index: Any) -> Any:
    """The element at an index."""
    return tirx.BufferLoad(source, list(index))


def ramp(begin: Any, lanes: int) -> Any:
    """`lanes` neighbours."""
    return tirx.Ramp(begin, wide(1), lanes)


def wide(value: int) -> Any:
    """A number of the type of extents."""
    return tirx.const(value, "int64")
