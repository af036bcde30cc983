# SPDX-License-Identifier: Apache-2.0
"""Operands of a product summed over rows, packed in panels.

The first tile that needs a panel of a chunk stores it, and adds its rows to the column sums if
these are requested. It does so before it multiplies, some rows at a time, which stay in the
first-level cache. An operand that one tile needs is read in place.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

from tvm import DataType, tirx
from tvm.script.ir_builder import tirx as T

# Gap between panels: if they were a power of two apart, they would evict each other from the cache.
_GAP_BYTES = 64


class Side:
    """An operand, and the panels into which a task packs it.

    Parameters
    ----------
    source : Buffer
        The operand, (K, columns).
    panels : tuple of int
        The largest number of panels in a task, and the rows and columns of a panel.
    is_reused : bool
        Whether several tiles read a panel, so that storing it is worthwhile.
    sums : Buffer, optional
        The output for the column sums of the source, (columns,).
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

    @property
    def has_to_read(self) -> bool:
        """Whether the first tile that needs a panel reads all of it before: to pack or sum it."""
        return self.is_reused or self.sums is not None

    def number(self, reading: Reading, row: tuple[Any, Any], column: Any) -> Any:
        """Return one number of a row; `row` is its number in the source, and in the chunk."""
        source, *place = self._at(reading, row, reading.shift + column)
        return load(source, *place)

    def vector(self, reading: Reading, row: tuple[Any, Any], column: Any) -> Any:
        """Return a vector of a row; `row` is as in `number`."""
        source, *place, last = self._at(reading, row, column)
        return load(source, *place, ramp(last, reading.lanes))

    def pack(self, reading: Reading, chunk: Chunk, rows: Part, writes: Any) -> None:
        """Store rows of a chunk in a panel, and add them to the totals.

        The totals are written to the output if `writes`, after every piece of the last chunk; after
        the last piece they are complete. Tasks that share columns compute the same sums, and one of
        these tasks writes them.
        """
        lanes = reading.lanes
        partial = self._zeros(reading)
        with T.serial(wide(0), rows.count) as n, reading.each() as at:
            k = rows.first + n
            value = T.Bind(load(self.source, chunk.start + k, ramp(reading.column + at, lanes)))
            if self.is_reused:
                packed = ramp(self._place(reading.panel, k) + at, lanes)
                T.buffer_store(self._packed, value, [packed])
            if partial is not None:
                own = ramp(at, lanes)
                T.buffer_store(partial, load(partial, own) + value, [own])
        if partial is None:
            return
        with reading.each() as at:
            own, kept = ramp(at, lanes), ramp(reading.panel * self.width + at, lanes)
            total = T.Bind(load(self._totals, kept) + load(partial, own))
            T.buffer_store(self._totals, total, [kept])
            with T.If(tirx.all(chunk.is_last, writes)), T.Then():
                T.buffer_store(self.sums, total, [ramp(reading.column + at, lanes)])

    def _zeros(self, reading: Reading) -> Any:
        """Return zeroed sums of a panel's columns, or None if they are not requested."""
        if self.sums is None:
            return None
        partial = T.alloc_buffer((reading.vectors * reading.lanes,), self.dtype)
        with reading.each() as at:
            T.buffer_store(partial, zeros(self.dtype, reading.lanes), [ramp(at, reading.lanes)])
        return partial

    def _at(self, reading: Reading, row: tuple[Any, Any], column: Any) -> tuple[Any, ...]:
        """Return the array that has a number of a row, and the number's indices in it."""
        if self.is_reused:
            return self._packed, self._place(reading.panel, row[1]) + column
        return self.source, row[0], reading.column + column

    def _place(self, panel: Any, row: Any) -> Any:
        return panel * self._stride + row * self.width


class Part(NamedTuple):
    """A range of tiles or panels of a block, or of rows of a chunk."""

    first: Any
    count: Any


class Chunk(NamedTuple):
    """The rows from `start` to ``start + count``, and whether they are the first or last chunk."""

    start: Any
    count: Any
    is_first: Any
    is_last: Any


class Reading(NamedTuple):
    """How a tile reads a panel of an operand.

    Parameters
    ----------
    panel : Expr
        The panel's number in the task.
    column : Expr
        The panel's first column in the source.
    vectors, lanes : int
        Number of vectors in a row of the panel, and numbers in a vector.
    shift : Expr
        Offset from `column` to the first number that the tile multiplies.
    """

    panel: Any
    column: Any
    vectors: int
    lanes: int
    shift: Any = 0

    @contextmanager
    def each(self) -> Iterator[Any]:
        """Emit code for every vector of a row, given the vector's offset in the panel."""
        with unrolled(self.vectors) as vector:
            yield vector * self.lanes


# Number of integers that a task can store in `Numbers`.
_MOST_NUMBERS = 64


class Numbers:
    """Integers stored in an array, so that TVM does not expand the expressions that compute them.

    TVM repeats a bound expression at every use, so nested expressions grow exponentially. LLVM
    keeps the array in registers.
    """

    def __init__(self) -> None:
        self._array = T.alloc_buffer((_MOST_NUMBERS,), "int64")
        self._places = iter(range(_MOST_NUMBERS))

    def hold(self, value: Any) -> Any:
        """Store `value` in the array, and return the load of this element."""
        place = wide(next(self._places))
        T.buffer_store(self._array, value, [place])
        return load(self._array, place)


def unrolled(times: int) -> Any:
    """Return a loop that TVM unrolls late, so that most of its passes run on less code."""
    return T.unroll(wide(0), wide(times))


def zeros(dtype: str, lanes: int) -> Any:
    """Return a vector of zeros."""
    return tirx.Broadcast(tirx.const(0, dtype), lanes)


def load(source: Any, *index: Any) -> Any:
    """Return the load of the element at an index."""
    return tirx.BufferLoad(source, list(index))


def ramp(begin: Any, lanes: int) -> Any:
    """Return a vector of `lanes` consecutive indices."""
    return tirx.Ramp(begin, wide(1), lanes)


def wide(value: int) -> Any:
    """Return an int64 constant, the dtype of extents and indices."""
    return tirx.const(value, "int64")
