# SPDX-License-Identifier: Apache-2.0
"""Parallel loops and vectors for kernels with one source and several targets.

A kernel that is written with `Loops` runs on CPU threads with `HOST_LOOPS`; other backends pass
their own loops.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from typing import Any, NamedTuple

from tvm import tirx
from tvm.script.ir_builder import tirx as T

MAX_LANES = 128
_LANES = 16  # float32 numbers in a register of AVX-512

# Calls its argument with the number of each column.
Columns = Callable[[Callable[[Any], None]], None]


class Loops(NamedTuple):
    """The parallel loops of a kernel.

    Attributes
    ----------
    each : callable
        ``with each(total) as n:`` loops over the numbers below `total`, int64.
    each_vector : callable
        ``with each_vector(rows, width, dtype) as (row, column, lanes):`` loops over the vectors of
        all rows: `lanes` columns from `column` on.
    each_row : callable
        ``with each_row(rows, width) as (row, columns):`` loops over rows, or parts of rows.
        ``columns(do)`` calls `do` with each column of the part: `do` writes only to that column,
        and reads nothing written for a different one.
    vector : callable
        ``with vector(count) as lane:`` loops over the lanes of a vector in registers.
    """

    each: Callable[[Any], AbstractContextManager[Any]]
    each_vector: Callable[[Any, int, str], AbstractContextManager[tuple[Any, Any, int]]]
    each_row: Callable[[Any, int], AbstractContextManager[tuple[Any, Columns]]]
    vector: Callable[[int], AbstractContextManager[Any]]


def column_tiles(width: int, most: int = MAX_LANES) -> tuple[int, int]:
    """Split a row of `width` columns into (tiles, lanes) with lanes a divisor up to `most`."""
    lanes = max(lane for lane in range(1, min(width, most) + 1) if width % lane == 0)
    return width // lanes, lanes


@contextmanager
def _each(total: Any) -> Iterator[Any]:
    with T.parallel(0, total) as n:
        yield n


@contextmanager
def _each_vector(rows: Any, width: int, _dtype: str) -> Iterator[tuple[Any, Any, int]]:
    tiles, lanes = column_tiles(width)
    with T.parallel(0, rows) as n, T.serial(0, tiles) as t:
        yield n, t * lanes, lanes


@contextmanager
def _each_row(rows: Any, width: int) -> Iterator[tuple[Any, Columns]]:
    with T.parallel(0, rows) as n:
        yield n, partial(columns, width)


def columns(width: int, do: Callable[[Any], None]) -> None:
    """Call `do` for each of `width` columns, in CPU vectors; the last one may be shorter.

    The length of a vector is a power of two, except for a remainder below 16: LLVM takes long to
    split operations on 50 numbers, and its code for them is slow.
    """
    lanes = min(max(_LANES, width & -width), MAX_LANES)
    whole = width - width % lanes
    if whole:
        with T.serial(0, _wide(whole // lanes)) as t, T.vectorized(0, _wide(lanes)) as d:
            do(t * lanes + d)
    if whole < width:
        with T.vectorized(0, _wide(width - whole)) as d:
            do(whole + d)


def _wide(number: int) -> Any:
    return tirx.const(number, "int64")


HOST_LOOPS = Loops(_each, _each_vector, _each_row, partial(T.vectorized, 0))


def store_vector(array: Any, place: Sequence[Any], lanes: int, value: Callable[[Any], Any]) -> None:
    """Store ``array[place + lane] = value(lane)`` for all lanes of the last axis, vectorized."""
    *before, column = place
    with T.vectorized(0, lanes) as lane:
        T.buffer_store(array, value(lane), [*before, column + lane])


class Number:
    """A local scalar variable, initially 0."""

    def __init__(self, dtype: str = "int32") -> None:
        self._place = T.alloc_local((1,), dtype)
        self.set(tirx.const(0, dtype))

    @property
    def now(self) -> Any:
        """The current value."""
        return self._place[0]

    def set(self, value: Any) -> None:
        """Set a new value."""
        T.buffer_store(self._place, value, [0])

    def add(self, value: Any) -> None:
        """Add to the value."""
        self.set(self.now + value)
