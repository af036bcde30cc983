# SPDX-License-Identifier: Apache-2.0
"""A tile of ids, which a thread block sorts by one digit.

Registers hold up to `ROWS` rows of 1,024 ids; a warp's ids are contiguous. A warp finds and counts
equal digits by votes, and the warps' counters are added in order. So equal digits keep their order
without atomic operations. Ids are reordered in shared memory and written contiguously for each
digit. Cost: some 60 warp instructions for 32 ids, whatever their digits are.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tvm import tirx
from tvm.script.ir_builder import tirx as T

from sparsetrain.backends.cuda.sparse.parts import barrier, shared
from sparsetrain.backends.cuda.sparse.warp import WARP, WORDS, rank, sum_to
from sparsetrain.kernels.loops import Number

SORTERS = 1024  # threads
WARPS = SORTERS // WARP
ROWS = 8  # ids that a thread holds at a time
TILE = SORTERS * ROWS
DIGIT_BITS = 9
DIGITS = 1 << DIGIT_BITS
SHARES = SORTERS // WORDS  # threads that share the addition of a word's counters
WORD = "uint32"
_HALF = tirx.const(0xFFFF, WORD)


def word(value: Any) -> Any:
    """Cast a value to uint32."""
    return tirx.Cast(WORD, value)


def low(pair: Any) -> Any:
    """Return the counter in the lower half of a word."""
    return tirx.bitwise_and(pair, _HALF)


def high(pair: Any) -> Any:
    """Return the counter in the upper half of a word."""
    return pair >> tirx.const(16, WORD)


class Shared:
    """Arrays of a block."""

    def __init__(self) -> None:
        self.words = shared(WARPS * WORDS, WORD)  # counters, then ids in their new order
        self.partial = shared(SHARES * WORDS, WORD)
        self.totals = shared(WARPS, WORD)  # of warps
        self.origin = shared(DIGITS, WORD)  # where digits go, minus their beginning in the tile
        self.local = shared(DIGITS, WORD)  # where digits begin in the tile


def clear_counters(words: Any, thread: Any) -> None:
    """Set all counters to zero."""
    with T.unroll(0, WARPS * WORDS // SORTERS) as turn:
        T.buffer_store(words, tirx.const(0, WORD), [turn * SORTERS + thread])
    barrier()


def count(words: Any, thread: Any, digit: Any, counts: Any) -> Any:
    """Call `rank` with the counters of the thread's warp."""
    counters = tirx.address_of(words[tirx.floordiv(thread, WARP) * WORDS])
    return T.Bind(rank(counters, word(digit), word(counts)))


def sum_before(totals: Any, thread: Any, mine: Any, first: int = 0, warps: int = WARPS) -> Any:
    """Return the sum of values over the threads before this one, and over all threads.

    Only `warps` warps from `first` on take part. All threads must call it, and `totals` can be
    reused after the next barrier.
    """
    upto = T.Bind(sum_to(mine))
    lane, warp = tirx.floormod(thread, WARP), T.Bind(tirx.floordiv(thread, WARP))
    with T.If(lane == WARP - 1), T.Then():
        T.buffer_store(totals, upto, [warp])
    barrier()
    before, every = Number(WORD), Number(WORD)
    with T.unroll(0, warps) as other:
        with T.If(other + first < warp), T.Then():
            before.add(totals[other + first])
        every.add(totals[other + first])
    return T.Bind(before.now + upto - mine), every.now


class Tile:
    """Up to `TILE` ids of a block while they are sorted.

    Parameters
    ----------
    arrays : Shared
    thread : int32
    rows : int32
        Number of rows, at most `ROWS`.
    count : int32
        Number of ids; all rows but the last are full.
    """

    def __init__(self, arrays: Shared, thread: Any, rows: Any, count: Any) -> None:
        self.arrays, self.thread, self.rows, self.count = arrays, thread, rows, count
        self.places = T.alloc_local((ROWS,), WORD)

    def each(self, work: Callable[[Any, Any], None], striped: bool = False) -> None:
        """Emit ``work(row, place)`` for each of the thread's ids; a warp's places are contiguous.

        With `striped`, a row's places are contiguous across the whole block.
        """
        with T.unroll(0, ROWS) as row:
            place = T.Bind(self._striped(row) if striped else self._own(row))
            with T.If(tirx.And(row < self.rows, place < self.count)), T.Then():
                work(row, place)

    def _own(self, row: Any) -> Any:
        warp, lane = tirx.floordiv(self.thread, WARP), tirx.floormod(self.thread, WARP)
        return (warp * self.rows + row) * WARP + lane

    def _striped(self, row: Any) -> Any:
        return row * SORTERS + self.thread

    def order(self, digit: Callable[[Any], Any]) -> Any:
        """Compute the sorted place of every id; `digit` maps a row of the thread to its digit.

        Afterwards ``arrays.local`` holds where each digit begins. Returns the counts of two digits,
        in each of the last `WORDS` threads.
        """
        words = self.arrays.words
        clear_counters(words, self.thread)
        with T.unroll(0, ROWS) as row, T.If(row < self.rows), T.Then():
            mine = T.Bind(digit(row))
            T.buffer_store(
                self.places,
                count(words, self.thread, mine, self._own(row) < self.count),
                [row],
            )
        barrier()
        totals = self._add_up()
        self._begin_digits(totals)

        def place(row: Any, _place: Any) -> None:
            mine = T.Bind(digit(row))
            counters = tirx.floordiv(self.thread, WARP) * WORDS
            pair = T.Bind(words[counters + tirx.floormod(mine, WORDS)])
            before = tirx.Select(mine < WORDS, low(pair), high(pair))
            T.buffer_store(self.places, self.places[row] + self.arrays.local[mine] + before, [row])

        self.each(place)
        barrier()
        return totals

    def _add_up(self) -> Any:
        """Turn counters into sums over earlier warps, both halves of a word at once."""
        words, partial, thread = self.arrays.words, self.arrays.partial, self.thread
        column = T.Bind(tirx.floormod(thread, WORDS))
        share = T.Bind(tirx.floordiv(thread, WORDS))
        mine = WARPS // SHARES
        total = Number(WORD)
        with T.unroll(0, mine) as warp:
            total.add(words[(share * mine + warp) * WORDS + column])
        T.buffer_store(partial, total.now, [thread])
        barrier()
        running = Number(WORD)
        with T.unroll(0, SHARES) as other, T.If(other < share), T.Then():
            running.add(partial[other * WORDS + column])
        with T.unroll(0, mine) as warp:
            place = T.Bind((share * mine + warp) * WORDS + column)
            counted = T.Bind(words[place])
            T.buffer_store(words, running.now, [place])
            running.add(counted)
        return running.now

    def _begin_digits(self, totals: Any) -> None:
        first = WARPS - WORDS // WARP
        before, every = sum_before(self.arrays.totals, self.thread, totals, first, WORDS // WARP)
        column = T.Bind(self.thread - first * WARP)
        with T.If(column >= 0), T.Then():
            T.buffer_store(self.arrays.local, low(before), [column])
            T.buffer_store(self.arrays.local, high(before) + low(every), [column + WORDS])
        barrier()

    def exchange(self, arrays: Sequence[Any], striped: bool) -> None:
        """Move the words of each row, (ROWS,), to their computed places."""
        words = self.arrays.words
        for array in arrays:

            def send(row: Any, _place: Any, array: Any = array) -> None:
                T.buffer_store(words, array[row], [self.places[row]])

            def take(row: Any, place: Any, array: Any = array) -> None:
                T.buffer_store(array, words[place], [row])

            self.each(send)
            barrier()
            self.each(take, striped)
            barrier()
