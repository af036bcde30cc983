# SPDX-License-Identifier: Apache-2.0
"""Radix sort of ids on a CUDA device.

The sort starts at the least significant digit. It covers the bits that `num_rows` needs, up to 9 in
each pass: two passes for 2^18 rows, three for 2^27. One block sorts up to `TILE` ids in one launch
(`coalesce_plan`). With more ids, each pass takes two launches: first, up to `MOST_BLOCKS` blocks
count the digits of their range of ids; then each block adds up the counts of earlier blocks and
writes its ids, tile by tile, to their sorted positions. Cost of a pass: 12 bytes read and 8 written
per id, and up to 256 KiB of counts per block, read from the cache. Positions are computed from
counts without atomic operations, so the result is the same in every run.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from tvm import tirx
from tvm.script.ir_builder import tirx as T

from sparsetrain.backends.cuda.sparse.parts import barrier, shared
from sparsetrain.backends.cuda.sparse.tile import (
    DIGITS,
    ROWS,
    SORTERS,
    TILE,
    WARPS,
    WORD,
    Shared,
    Tile,
    clear_counters,
    count,
    high,
    low,
    sum_before,
    word,
)
from sparsetrain.backends.cuda.sparse.warp import WARP, WORDS
from sparsetrain.kernels.loops import Number

MOST_BLOCKS = 128  # limited because each block reads the counts of all blocks
AT_ONCE = 16  # counts that a thread reads by independent loads
MOST_ROWS = 2047  # most rows of 32 ids per warp that 16-bit counters can count


def blocks_of(entries: int) -> tuple[int, int]:
    """Return the number of blocks that share the ids, and how many rows of 1,024 each has."""
    rows = min(MOST_ROWS, max(1, -(-entries // (SORTERS * MOST_BLOCKS))))
    return max(1, -(-entries // (SORTERS * rows))), rows


class Ids(NamedTuple):
    """The arrays of a sort: ids (N,), and keys and positions (2, N).

    Each pass reads one row of keys and positions and writes the other. The last pass writes row 0.
    """

    ids: Any
    keys: Any
    positions: Any
    passes: Any
    digit_bits: Any

    @property
    def dtype(self) -> str:
        """Dtype of the ids."""
        return str(self.ids.dtype)

    def target(self, number: Any) -> Any:
        """Return the row of keys and positions that a pass writes."""
        return tirx.Cast("int64", tirx.floormod(self.passes + 1 + number, 2))

    def key(self, number: Any, n: Any) -> Any:
        """Return the id at index n at the start of a pass."""
        source = 1 - self.target(number)
        return tirx.if_then_else(number == 0, self.ids[n], self.keys[source, n])

    def position(self, number: Any, n: Any) -> Any:
        """Return the original index of the id at index n at the start of a pass."""
        source = 1 - self.target(number)
        own = tirx.Cast("int32", n)
        return tirx.if_then_else(number == 0, own, self.positions[source, n])

    def digit(self, number: Any, key: Any) -> Any:
        """Return the digit of a key by which pass `number` sorts, int32."""
        one = tirx.const(1, "int32")
        mask = tirx.Cast(self.dtype, (one << self.digit_bits) - one)
        shifted = key >> tirx.Cast(self.dtype, number * self.digit_bits)
        return tirx.Cast("int32", tirx.bitwise_and(shifted, mask))

    def words(self, key: Any) -> list[Any]:
        """Return a key as 32-bit words, the least significant first."""
        whole = tirx.reinterpret("u" + self.dtype, key)
        if self.dtype == "int32":
            return [whole]
        return [word(whole), word(whole >> tirx.const(32, "uint64"))]

    def whole(self, words: list[Any]) -> Any:
        """Return the key, given its `words`."""
        if self.dtype == "int32":
            return tirx.reinterpret("int32", words[0])
        lower, upper = (tirx.Cast("uint64", each) for each in words)
        joined = tirx.bitwise_or(lower, upper << tirx.const(32, "uint64"))
        return tirx.reinterpret("int64", joined)


class Carried:
    """The keys and positions of a tile, held in registers and exchanged between threads."""

    def __init__(self, ids: Ids) -> None:
        self.ids = ids
        parts = 1 if ids.dtype == "int32" else 2
        self._keys = [T.alloc_local((ROWS,), WORD) for _ in range(parts)]
        self._positions = T.alloc_local((ROWS,), WORD)

    def key(self, row: Any) -> Any:
        """Return this thread's key in a row."""
        return self.ids.whole([part[row] for part in self._keys])

    def position(self, row: Any) -> Any:
        """Return this thread's position in a row, int32."""
        return tirx.Cast("int32", self._positions[row])

    def load(self, tile: Tile, key: Callable[[Any], Any], position: Callable[[Any], Any]) -> None:
        """Load keys and positions; `key` and `position` return them for an index in the tile."""

        def take(row: Any, place: Any) -> None:
            for part, value in zip(self._keys, self.ids.words(T.Bind(key(place))), strict=True):
                T.buffer_store(part, value, [row])
            T.buffer_store(self._positions, word(position(place)), [row])

        with T.unroll(0, ROWS) as row:
            for part in self._keys:
                T.buffer_store(part, tirx.const(0, WORD), [row])
        tile.each(take)

    def exchange(self, tile: Tile, striped: bool) -> None:
        """Move keys and positions to the places in the tile that `tile.order` computed."""
        tile.exchange([*self._keys, self._positions], striped)


def count_digits(
    ids: Ids, number: Any, stretch: tuple[Any, Any, Any], thread: Any, counts: Any
) -> None:
    """Count the digits of a block's ids into its row of `counts` (blocks, DIGITS)."""
    block, first, rows = stretch
    words = shared(WARPS * WORDS, WORD)
    clear_counters(words, thread)
    entries = ids.ids.shape[0]
    with T.serial(0, rows) as row:
        n = T.Bind(first + row * SORTERS + thread)
        key = tirx.if_then_else(n < entries, ids.key(number, n), tirx.const(0, ids.dtype))
        count(words, thread, T.Bind(ids.digit(number, key)), n < entries)
    barrier()
    column = T.Bind(tirx.floormod(thread, WORDS))
    half = T.Bind(tirx.floormod(tirx.floordiv(thread, WORDS), 2))
    side = T.Bind(tirx.floordiv(thread, 2 * WORDS))
    total = Number(WORD)
    with T.unroll(0, WARPS // 2) as warp:
        pair = T.Bind(words[(side * (WARPS // 2) + warp) * WORDS + column])
        total.add(tirx.Select(half == 0, low(pair), high(pair)))
    barrier()
    T.buffer_store(words, total.now, [thread])
    barrier()
    with T.If(thread < DIGITS), T.Then():
        both = words[thread] + words[thread + DIGITS]
        T.buffer_store(counts, tirx.Cast("int32", both), [block, thread])


def send_to_places(
    ids: Ids, number: Any, stretch: tuple[Any, Any, Any], thread: Any, counts: Any
) -> None:
    """Write a block's ids to their positions in the order after pass `number`."""
    block, first, rows = stretch
    arrays, begin = Shared(), shared(DIGITS, WORD)
    _begin_digits(arrays, begin, counts, block, thread)
    carried, target = Carried(ids), T.Bind(ids.target(number))
    with T.serial(0, tirx.ceildiv(rows, ROWS)) as turn:
        start = T.Bind(first + turn * TILE)
        left = tirx.min(tirx.const(TILE, "int64"), ids.ids.shape[0] - start)
        here = T.Bind(tirx.min(tirx.const(ROWS, "int32"), rows - turn * ROWS))
        tile = Tile(arrays, thread, here, T.Bind(tirx.Cast("int32", left)))
        carried.load(
            tile,
            lambda place: ids.key(number, start + place),
            lambda place: ids.position(number, start + place),
        )
        totals = tile.order(lambda row: ids.digit(number, carried.key(row)))
        _advance(arrays, begin, thread, totals)
        carried.exchange(tile, striped=True)

        def send(row: Any, place: Any) -> None:
            key = T.Bind(carried.key(row))
            origin = T.Bind(arrays.origin[ids.digit(number, key)])
            there = T.Bind(tirx.Cast("int64", origin + word(place)))
            T.buffer_store(ids.keys, key, [target, there])
            T.buffer_store(ids.positions, carried.position(row), [target, there])

        tile.each(send, striped=True)
        barrier()


def _begin_digits(arrays: Shared, begin: Any, counts: Any, block: Any, thread: Any) -> None:
    """Compute the position of the block's first id with each digit.

    It comes after all ids with smaller digits, and the same digit in earlier blocks.
    """
    words = arrays.words
    digit = T.Bind(tirx.floormod(thread, DIGITS))
    half = T.Bind(tirx.floordiv(thread, DIGITS))
    every, before = Number(), Number()
    none = tirx.const(0, "int32")
    with (
        T.serial(0, tirx.ceildiv(counts.shape[0], 2 * AT_ONCE)) as turn,
        T.unroll(0, AT_ONCE) as part,
    ):
        other = T.Bind((turn * AT_ONCE + part) * 2 + half)
        known = tirx.if_then_else(other < counts.shape[0], counts[other, digit], none)
        counted = T.Bind(known)
        every.add(counted)
        before.add(tirx.Select(other < block, counted, none))
    T.buffer_store(words, word(every.now), [thread])
    T.buffer_store(words, word(before.now), [thread + SORTERS])
    barrier()
    mine = tirx.if_then_else(
        thread < DIGITS, words[thread] + words[digit + DIGITS], tirx.const(0, WORD)
    )
    smaller, _ = sum_before(arrays.totals, thread, T.Bind(mine), 0, DIGITS // WARP)
    with T.If(thread < DIGITS), T.Then():
        earlier = words[thread + SORTERS] + words[thread + SORTERS + DIGITS]
        T.buffer_store(begin, smaller + earlier, [thread])
    barrier()


def _advance(arrays: Shared, begin: Any, thread: Any, totals: Any) -> None:
    """Store the positions of a tile's digits, and advance `begin` past them for the next tile."""
    column = T.Bind(thread - (SORTERS - WORDS))
    with T.If(column >= 0), T.Then():
        for digit, found in ((column, low(totals)), (column + WORDS, high(totals))):
            there = T.Bind(begin[digit])
            T.buffer_store(arrays.origin, there - arrays.local[digit], [digit])
            T.buffer_store(begin, there + found, [digit])
