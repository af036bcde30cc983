# SPDX-License-Identifier: Apache-2.0
"""Ids in order on a CUDA device, and where the runs of equal ones begin.

**Sort.** Least significant digit first, on the bits that `num_rows` needs, 5 at a time. A block
counts the digits of a tile of 4,096 ids; one block turns the counts into places; then a block of
each tile sends its ids there. Within a tile each thread owns a stretch of ids and a counter for
each digit, so equal ids keep their order. Cost: 16 bytes read and 16 written per id and pass.

**Runs.** A block counts those that begin in a tile; one block turns the counts into places; then a
block of each tile writes rows and offsets.

No atomic operations: places follow from counts, so the result is the same in every run.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tvm import tirx
from tvm.script.ir_builder import tirx as T
from tvm.tirx import PrimFunc

from sparsetrain.kernel_builder import buffer, extents, kernel
from sparsetrain.relax_op import THREADS
from sparsetrain.sparse_tensor.cuda_parts import (
    Number,
    barrier,
    blocks_of_threads,
    each_of,
    shared,
    sum_before,
)

WARP = 32
WARPS = THREADS // WARP
DIGIT_BITS = 5
DIGITS = 1 << DIGIT_BITS  # as many as a warp has threads: a thread adds up a warp's counters
PITCH = WARPS * (WARP + 1)  # counters of a digit; the gap after each warp's spreads them over banks
ITEMS = 16  # ids of one thread
TILE = THREADS * ITEMS
SCANNERS = 1024  # threads of the one block that turns counts into places


@contextmanager
def _own_items(tile: Any, thread: Any, count: Any) -> Iterator[Any]:
    """The places of a tile that belong to a thread, in order."""
    with T.serial(0, ITEMS) as item:
        place = T.Bind(tile * TILE + thread * ITEMS + item)
        with T.If(place < count), T.Then():
            yield place


def _places_from_counts(counts: Any, first: Any, length: Any, thread: Any, sums: Any) -> Any:
    """Replace `length` counts, from `first` on, by their sums so far; one block.

    Afterwards ``sums[SCANNERS - 1]`` is the total.
    """
    share = T.Bind(tirx.ceildiv(length, SCANNERS))
    mine = Number()

    @contextmanager
    def own() -> Iterator[Any]:
        with T.serial(0, share) as i:
            place = T.Bind(thread * share + i)
            with T.If(place < length), T.Then():
                yield first + place

    with own() as place:
        mine.add(counts[place])
    before = sum_before(sums, thread, mine.now, SCANNERS)
    with own() as place:
        count = T.Bind(counts[place])
        T.buffer_store(counts, before.now, [place])
        before.add(count)


def radix_sort_kernel(index_dtype: str) -> PrimFunc:
    """Stable sort of ids (N,), and the position each came from, in row ``passes % 2`` of (2, N).

    Arguments: ids (N,), keys (2, N), order (2, N) int32, counts (32 * tiles,) int32, which is
    scratch, and passes.
    """
    with kernel("radix_sort") as built:
        count, entries = extents(2)
        ids = buffer("ids", (count,), index_dtype)
        keys = buffer("keys", (2, count), index_dtype)
        order = buffer("order", (2, count), "int32")
        counts = buffer("counts", (entries,), "int32")
        passes = T.arg("passes", T.int32())
        tiles = tirx.floordiv(entries, DIGITS)
        with each_of(count) as n:
            T.buffer_store(keys, ids[n], [0, n])
            T.buffer_store(order, tirx.Cast("int32", n), [0, n])
        with T.serial(0, passes) as number:
            here = tirx.Cast("int64", tirx.floormod(number, 2))
            shift = tirx.Cast(index_dtype, number * DIGIT_BITS)

            def digit(n: Any, here: Any = here, shift: Any = shift) -> Any:
                low = tirx.bitwise_and(keys[here, n] >> shift, tirx.const(DIGITS - 1, index_dtype))
                return T.Bind(tirx.Cast("int64", low))

            with blocks_of_threads(tiles) as (tile, thread):
                _count_tile(counts, tiles, (tile, thread, count), digit)
            with blocks_of_threads(1, SCANNERS) as (_, thread):
                _places_from_counts(counts, 0, entries, thread, shared(SCANNERS))
            with blocks_of_threads(tiles) as (tile, thread):
                place_of = _rank_tile(counts, tiles, (tile, thread, count), digit)
                with _own_items(tile, thread, count) as n:
                    place = place_of(digit(n))
                    T.buffer_store(keys, keys[here, n], [1 - here, place])
                    T.buffer_store(order, order[here, n], [1 - here, place])
    return built.get()


def _count_own(seen: Any, where: tuple[Any, Any, Any], digit: Any) -> None:
    """Count a thread's digits in counters of its own."""
    tile, thread, count = where
    with T.serial(0, DIGITS) as d:
        T.buffer_store(seen, tirx.const(0, "int32"), [_counter(d, thread)])
    with _own_items(tile, thread, count) as n:
        mine = T.Bind(_counter(digit(n), thread))
        T.buffer_store(seen, seen[mine] + 1, [mine])
    barrier()


def _counter(digit: Any, thread: Any) -> Any:
    """Place of a thread's counter: by digit, then by thread."""
    warp, lane = tirx.floordiv(thread, WARP), tirx.floormod(thread, WARP)
    return digit * PITCH + warp * (WARP + 1) + lane


def _stretch(seen: Any, thread: Any) -> Number:
    """Sum of the counters that stand one after another in a thread's share."""
    total = Number()
    with T.serial(0, WARP) as i:
        total.add(seen[thread * (WARP + 1) + i])
    return total


def _count_tile(counts: Any, tiles: Any, where: tuple[Any, Any, Any], digit: Any) -> None:
    tile, thread, _ = where
    seen, sums = shared(DIGITS * PITCH), shared(THREADS)
    _count_own(seen, where, digit)
    T.buffer_store(sums, _stretch(seen, thread).now, [thread])
    barrier()
    with T.If(thread < DIGITS), T.Then():
        total = Number()
        with T.serial(0, WARPS) as warp:
            total.add(sums[thread * WARPS + warp])
        T.buffer_store(counts, total.now, [thread * tiles + tile])


def _rank_tile(counts: Any, tiles: Any, where: tuple[Any, Any, Any], digit: Any) -> Any:
    """Count again, and turn the counters into ranks; returns what gives a digit's next place."""
    tile, thread, _ = where
    seen, sums, begin = shared(DIGITS * PITCH), shared(THREADS), shared(DIGITS)
    _count_own(seen, where, digit)
    running = sum_before(sums, thread, _stretch(seen, thread).now, THREADS)
    with T.If(tirx.floormod(thread, WARPS) == 0), T.Then():
        T.buffer_store(begin, running.now, [tirx.floordiv(thread, WARPS)])
    with T.serial(0, WARP) as i:
        place = T.Bind(thread * (WARP + 1) + i)
        count = T.Bind(seen[place])
        T.buffer_store(seen, running.now, [place])
        running.add(count)
    barrier()

    def next_place(d: Any) -> Any:
        mine = T.Bind(_counter(d, thread))
        rank = T.Bind(seen[mine])
        T.buffer_store(seen, rank + 1, [mine])
        return T.Bind(tirx.Cast("int64", counts[d * tiles + tile] + rank - begin[d]))

    return next_place


def find_segments_kernel(index_dtype: str) -> PrimFunc:
    """Unique rows of sorted ids and where each one's run begins; padding is left out.

    Arguments as of the CPU's kernel, with `found` (2 * tiles,) int32 before the last two, which is
    scratch: for each tile the runs that begin in it, then the ids outside the table.
    """
    with kernel("find_segments") as built:
        count, entries = extents(2)
        keys = buffer("keys", (2, count), index_dtype)
        positions = buffer("positions", (2, count), "int32")
        order = buffer("order", (count,), "int32")
        rows = buffer("rows", (count,), index_dtype)
        offsets = buffer("offsets", (count + 1,), "int32")
        counts = buffer("counts", (2,), "int32")
        found = buffer("found", (entries,), "int32")
        half = tirx.Cast("int64", T.arg("half", T.int32()))
        num_rows = T.arg("num_rows", T.int64())
        tiles = tirx.floordiv(entries, 2)
        ids = _Sorted(keys, half, num_rows, count)
        with blocks_of_threads(tiles) as (tile, thread):
            sums = shared(THREADS)
            for row, counted in enumerate((ids.begins, ids.outside)):
                mine = Number()
                with _own_items(tile, thread, count) as n, T.If(counted(n)), T.Then():
                    mine.add(1)
                sum_before(sums, thread, mine.now, THREADS)
                with T.If(thread == THREADS - 1), T.Then():
                    T.buffer_store(found, sums[thread], [row * tiles + tile])
                barrier()
        with blocks_of_threads(1, SCANNERS) as (_, thread):
            sums = shared(SCANNERS)
            for row in range(2):
                _places_from_counts(found, row * tiles, tiles, thread, sums)
                with T.If(thread == SCANNERS - 1), T.Then():
                    T.buffer_store(counts, sums[thread], [row])
                    if row == 0:
                        with T.If(sums[thread] == 0), T.Then():
                            T.buffer_store(offsets, tirx.const(0, "int32"), [0])
                barrier()
        with blocks_of_threads(tiles) as (tile, thread):
            _write_runs(ids, (positions, order, rows, offsets, found), (tile, thread))
    return built.get()


class _Sorted:
    """Sorted ids, and what may be asked about the one at a place."""

    def __init__(self, keys: Any, half: Any, num_rows: Any, count: Any) -> None:
        self.keys, self.half, self.num_rows, self.count = keys, half, num_rows, count

    def key(self, place: Any) -> Any:
        return tirx.Cast("int64", self.keys[self.half, place])

    def inside(self, place: Any) -> Any:
        return self.key(place) < self.num_rows

    def outside(self, place: Any) -> Any:
        return tirx.Or(self.key(place) < 0, self.key(place) > self.num_rows)

    def begins(self, place: Any) -> Any:
        other = self.key(tirx.max(place - 1, 0)) != self.key(place)
        return tirx.And(self.inside(place), tirx.Or(place == 0, other))

    def ends_all(self, place: Any) -> Any:
        """Whether no run goes on or begins behind a place that lies in one."""
        after = tirx.Not(self.inside(tirx.min(place + 1, self.count - 1)))
        return tirx.And(self.inside(place), tirx.Or(place == self.count - 1, after))


def _write_runs(ids: _Sorted, arrays: tuple[Any, ...], where: tuple[Any, Any]) -> None:
    positions, order, rows, offsets, found = arrays
    tile, thread = where
    mine = Number()
    with _own_items(tile, thread, ids.count) as n, T.If(ids.begins(n)), T.Then():
        mine.add(1)
    run = sum_before(shared(THREADS), thread, mine.now, THREADS)
    run.add(found[tile])
    with _own_items(tile, thread, ids.count) as n:
        T.buffer_store(order, positions[ids.half, n], [n])
        with T.If(ids.begins(n)), T.Then():
            T.buffer_store(rows, ids.keys[ids.half, n], [run.now])
            T.buffer_store(offsets, tirx.Cast("int32", n), [run.now])
            run.add(1)
        with T.If(ids.ends_all(n)), T.Then():
            T.buffer_store(offsets, tirx.Cast("int32", n + 1), [run.now])
