# SPDX-License-Identifier: Apache-2.0
"""A tile of ids, which a thread block sorts by one digit.

Registers hold up to `ROWS` rows of 1,024 ids; a warp's ids are contiguous. A warp finds and counts
equal digits by votes, and the counters of all warps are added in order. So ids with equal digits
keep their order, without atomic operations. Ids are reordered in shared memory, and those with
equal digits written contiguously. Cost: about 60 warp instructions for 32 ids, whatever their
digits are.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tvm import tirx
from tvm.script.ir_builder import tirx as T

from sparsetrain.backends.cuda.sparse.parts import barrier, shared
from sparsetrain.backends.cuda.sparse.warp import WARP, WORDS, rank, sum_to
from sparsetrain.kernels.loops import Number

SORTERS = 1024  # threads per block
WARPS = SORTERS // WARP
ROWS = 8  # ids that a thread holds at a time
TILE = SORTERS * ROWS
DIGIT_BITS = 9
DIGITS = 1 << DIGIT_BITS
SHARES = SORTERS // WORDS  # threads that together add up a counter word over all warps
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
    """The arrays of a block in shared memory."""

    def __init__(self) -> None:
        self.words = shared(WARPS * WORDS, WORD)  # counters, then ids in their new order
        self.partial = shared(SHARES * WORDS, WORD)
        self.totals = shared(WARPS, WORD)  # a sum for each warp
        self.origin = shared(DIGITS, WORD)  # each digit's start in the output minus `local`
        self.local = shared(DIGITS, WORD)  # each digit's start in the sorted tile


def clear_counters(words: Any, thread: Any) -> None:
    """Set the counters of all warps to zero."""
    with T.unroll(0, WARPS * WORDS // SORTERS) as turn:
        T.buffer_store(words, tirx.const(0, WORD), [turn * SORTERS + thread])
    barrier()


def count(words: Any, thread: Any, digit: Any, counts: Any) -> Any:
    """Count a digit in the counters of the thread's warp (see `rank`)."""
    counters = tirx.address_of(words[tirx.floordiv(thread, WARP) * WORDS])
    return T.Bind(rank(counters, word(digit), word(counts)))


def sum_before(totals: Any, thread: Any, mine: Any, first: int = 0, warps: int = WARPS) -> Any:
    """Return the sum of `mine` over the threads before this thread, and over all threads.

    Only the values of `warps` warps from `first` on are added, but all threads must call this. The
    shared array `totals` can be reused after the next barrier.
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
    """Up to `TILE` ids, while a block sorts them.

    Parameters
    ----------
    arrays : Shared
        The block's arrays in shared memory.
    thread : int32
        The thread's number in the block.
    rows : int32
        Number of rows of 1,024 ids, at most `ROWS`.
    count : int32
        Number of ids before the end of the input, at most `TILE`; the last row may be incomplete.
    """

    def __init__(self, arrays: Shared, thread: Any, rows: Any, count: Any) -> None:
        self.arrays, self.thread, self.rows, self.count = arrays, thread, rows, count
        self.places = T.alloc_local((ROWS,), WORD)

    def each(self, work: Callable[[Any, Any], None], striped: bool = False) -> None:
        """Emit ``work(row, place)`` for each of the thread's ids, with its place in the tile.

        The places of a warp's ids are contiguous. With `striped`, the places of a row are
        contiguous across the block instead.
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
        """Compute each id's place in the sorted tile; `digit` returns the digit of a thread's row.

        Afterwards, ``arrays.local`` contains the place where each digit begins. Return a word with
        the tile's counts of two digits, valid in the last `WORDS` threads.
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
        """Replace counters by their sums over earlier warps, for both halves of a word at once."""
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
        """Move the words in each array, one per row of the thread, to their computed places."""
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
