# SPDX-License-Identifier: Apache-2.0
"""Code of CUDA kernels that finds the runs of equal ids among sorted ids.

Each block counts the runs that begin in its part of the ids, and the ids outside the table. Then it
adds up the counts of earlier blocks, and writes its rows and offsets. A warp processes 32 ids at a
time: each thread votes whether a run begins at its id, and counts the votes of earlier threads.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from tvm import tirx
from tvm.script.ir_builder import tirx as T

from sparsetrain.backends.cuda.sparse.parts import barrier, shared
from sparsetrain.backends.cuda.sparse.tile import SORTERS, WARPS, WORD, sum_before, word
from sparsetrain.backends.cuda.sparse.warp import WARP, votes, votes_before
from sparsetrain.kernels.loops import Number


class Sorted:
    """Sorted ids, which are ``keys[0]`` of keys (2, N), and predicates on the id at an index."""

    def __init__(self, keys: Any, num_rows: Any) -> None:
        self.keys, self.num_rows, self.count = keys, num_rows, keys.shape[1]

    def key(self, place: Any) -> Any:
        """Return the id at an index, as int64."""
        return tirx.Cast("int64", self.keys[0, place])

    def _inside(self, place: Any) -> Any:
        return self.key(place) < self.num_rows

    def outside(self, place: Any) -> Any:
        """Whether the id is neither a row nor padding."""
        return tirx.Or(self.key(place) < 0, self.key(place) > self.num_rows)

    def begins(self, place: Any) -> Any:
        """Whether a run begins at an index."""
        other = self.key(tirx.max(place - 1, 0)) != self.key(place)
        return tirx.And(self._inside(place), tirx.Or(place == 0, other))

    def ends_all(self, place: Any) -> Any:
        """Whether an index is the last in any run: the next id is padding, or there is none."""
        after = tirx.Not(self._inside(tirx.min(place + 1, self.count - 1)))
        return tirx.And(self._inside(place), tirx.Or(place == self.count - 1, after))

    def vote(self, test: Any, place: Any) -> Any:
        """Return the value of a predicate as 1 or 0; it is 0 for indices past the end."""
        answer = tirx.if_then_else(place < self.count, word(test(place)), tirx.const(0, WORD))
        return T.Bind(answer)


class PlanArrays(NamedTuple):
    """The results: rows (N,), offsets (N + 1,), and counts (2,) of runs and of invalid ids."""

    rows: Any
    offsets: Any
    counts: Any


class Stretch:
    """The ids of a block from index ``first`` (int64) on, with a contiguous piece for each warp."""

    def __init__(self, ids: Sorted, first: Any, rows: Any, thread: Any) -> None:
        self.ids, self.rows, self.thread = ids, rows, thread
        self.lane = tirx.floormod(thread, WARP)
        self._start = first + tirx.floordiv(thread, WARP) * rows * WARP + self.lane

    def place(self, row: Any) -> Any:
        """Return the index of the thread's id in a row of 32 ids."""
        return T.Bind(self._start + row * WARP)

    def warp_count(self, test: Any) -> Any:
        """Return how many ids of the warp satisfy a predicate; every thread gets the number."""
        total = Number(WORD)
        with T.serial(0, self.rows) as row:
            total.add(tirx.popcount(votes(self.ids.vote(test, self.place(row)))))
        return total

    def counts(self, test: Any, totals: Any) -> tuple[Any, Any]:
        """Return how many ids satisfy a predicate in earlier warps, and in the block."""
        mine = self.warp_count(test)
        # All threads know the count of their warp; only the last thread contributes it.
        once = tirx.Select(self.lane == WARP - 1, mine.now, tirx.const(0, WORD))
        found = sum_before(totals, self.thread, T.Bind(once))
        barrier()
        return found


def count_runs(stretch: Stretch, block: Any, found: Any) -> None:
    """Store in `found` (2, blocks) how many runs begin in a block, and how many ids are invalid."""
    totals, ids = shared(WARPS, WORD), stretch.ids
    for row, test in enumerate((ids.begins, ids.outside)):
        _, number = stretch.counts(test, totals)
        with T.If(stretch.thread == 0), T.Then():
            T.buffer_store(found, tirx.Cast("int32", number), [row, block])


def write_runs(stretch: Stretch, plan: PlanArrays, block: Any, found: Any = None) -> None:
    """Write a block's rows and offsets; the last block also writes the total counts.

    If `found` is None, there is only one block.
    """
    totals, ids = shared(WARPS, WORD), stretch.ids
    if found is None:
        last, earlier = block == 0, tirx.const(0, WORD)
        _, outside = stretch.counts(ids.outside, totals)
    else:
        blocks = found.shape[1]
        last, earlier = block == blocks - 1, _sum_of(found, 0, block, stretch.thread, totals)
        outside = _sum_of(found, 1, blocks, stretch.thread, totals)
    before, runs = stretch.counts(ids.begins, totals)
    with T.If(tirx.And(last, stretch.thread == 0)), T.Then():
        for row, number in enumerate((earlier + runs, outside)):
            T.buffer_store(plan.counts, tirx.Cast("int32", number), [row])
        with T.If(earlier + runs == 0), T.Then():
            T.buffer_store(plan.offsets, tirx.const(0, "int32"), [0])
    _write(stretch, plan, earlier + before)


def _sum_of(found: Any, row: int, blocks: Any, thread: Any, totals: Any) -> Any:
    """Return the sum of ``found[row]`` over the first `blocks` blocks."""
    mine = Number()
    with T.serial(0, tirx.ceildiv(tirx.max(blocks - thread, 0), SORTERS)) as turn:
        mine.add(found[row, turn * SORTERS + thread])
    _, every = sum_before(totals, thread, T.Bind(word(mine.now)))
    barrier()
    return every


def _write(stretch: Stretch, plan: PlanArrays, first: Any) -> None:
    """Write the runs that begin in a warp's piece, numbered from `first`."""
    ids, run = stretch.ids, Number(WORD)
    run.set(first)
    with T.serial(0, stretch.rows) as row:
        n = stretch.place(row)
        begins = ids.vote(ids.begins, n)
        found = T.Bind(votes(begins))
        mine = T.Bind(tirx.Cast("int64", run.now + votes_before(stretch.thread, found)))
        with T.If(begins != 0), T.Then():
            T.buffer_store(plan.rows, ids.keys[0, n], [mine])
            T.buffer_store(plan.offsets, tirx.Cast("int32", n), [mine])
        with T.If(ids.vote(ids.ends_all, n) != 0), T.Then():
            after = mine + tirx.Cast("int64", begins)
            T.buffer_store(plan.offsets, tirx.Cast("int32", n + 1), [after])
        run.add(tirx.popcount(found))
