# SPDX-License-Identifier: Apache-2.0
"""A plan by counting, for tables with fewer rows than there are ids.

Every row has a counter. Their running sums are where the run of each row begins, so the runs are
known before an entry is placed, and ids are never moved: two passes over the ids and one over the
rows. A chunk has counters of its own, and places its entries behind those of the chunks before it.

What is parallel: chunks, where their counters are few. What makes places of counters is one thread,
so all of them go to its core and back; and one thread alone counts faster than two sort. It has two
chunks, and goes through both at once: where ids are equal one after the other, each waits for the
counter that the one before it wrote.
"""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from tvm import tirx
from tvm.script.ir_builder import tirx as T
from tvm.tirx import const

from sparsetrain.kernels.builder import counter, put
from sparsetrain.sparse_tensor.sort_chunks import share

AT_ONCE = 2  # chunks of one thread
LINE = 16  # counters, at most, in a line of the cache, which no two threads write
# Threads count from so many ids on, and so many of each counter. Zen 5, medians: of 800 rows two
# count 16,384 ids in 23 us and one in 19, 53,248 in 61 and 60, 262,144 in 289 and 329; of half as
# many rows as ids 53,248 in 232 and 104.
THREADS_FROM, OF_EACH = 32_768, 16
# So many threads sort digit by digit in more time than one counts: 53,248 ids of half as many rows
# in 202 us and 104, 262,144 in 895 and 690. More threads were not measured.
SLOWER = 2


def can_count(a: SimpleNamespace) -> Any:
    """Whether one thread's counters have room in `a.keys`, which then holds nothing else.

    Not more rows than ids, too: `rows` and `offsets` have no room for more.
    """
    few = a.notes.shape[0] <= SLOWER
    return tirx.And(few, AT_ONCE * _counters(a) <= 2 * a.ids.shape[0])


def threads_can_count(a: SimpleNamespace) -> Any:
    """Whether a thread for each chunk is faster; then their counters have room, too."""
    chunks, entries = a.notes.shape[0], a.ids.shape[0]
    few = tirx.And(chunks > 1, OF_EACH * chunks * _counters(a) <= entries)
    return tirx.And(few, entries >= THREADS_FROM)


def _counters(a: SimpleNamespace) -> Any:
    """Of a chunk: one of each row, one of padding, and some that fill a line."""
    return (a.num_rows // LINE + 1) * LINE


def count_sort(a: SimpleNamespace, parallel: bool) -> None:
    """Make the plan of `a.ids`; see `plan_kernel` for what there is in `a`."""
    chunks = a.notes.shape[0] if parallel else AT_ONCE
    counters, padding = T.Bind(_counters(a)), T.Bind(tirx.Cast(a.ids.dtype, a.num_rows))
    with T.serial(0, chunks * counters) as n:
        T.buffer_store(a.keys, const(0, a.keys.dtype), [n])

    def number(s: Any, n: Any) -> Any:
        """Of the counter of an entry. One outside counts as a row, too: it must not be far away."""
        row = tirx.max(tirx.min(a.ids[n], padding), const(0, a.ids.dtype))
        return T.Bind(s * counters + tirx.Cast("int64", row))

    def count(s: Any, n: Any) -> None:
        d = number(s, n)
        T.buffer_store(a.keys, a.keys[d] + 1, [d])

    def place(s: Any, n: Any) -> None:
        d = number(s, n)
        free = T.Bind(a.keys[d])
        T.buffer_store(a.keys, free + 1, [d])
        T.buffer_store(a.order, tirx.Cast("int32", n), [0, free])

    each = _each_chunk if parallel else _all_at_once
    _check(a, padding)
    each(a, count)
    _write_runs(a, chunks, counters)
    each(a, place)


def _each_chunk(a: SimpleNamespace, work: Callable[[Any, Any], None]) -> None:
    """Call ``work(chunk, entry)`` for all entries, each chunk in a thread."""
    with T.parallel(0, a.notes.shape[0]) as s:
        begin, end = share(a, s)
        with T.serial(0, end - begin) as n:
            work(s, begin + n)


def _all_at_once(a: SimpleNamespace, work: Callable[[Any, Any], None]) -> None:
    """Call ``work(chunk, entry)`` for all entries, an entry of each chunk after the other."""
    entries = a.ids.shape[0]
    share = T.Bind(entries // AT_ONCE)
    with T.serial(0, share) as n:
        for s in range(AT_ONCE):
            work(s, s * share + n)
    with T.serial(0, entries - AT_ONCE * share) as n:
        work(AT_ONCE - 1, AT_ONCE * share + n)


def _check(a: SimpleNamespace, padding: Any) -> None:
    """Count the ids that are neither padding nor a row."""
    outside = counter()
    with T.serial(0, a.ids.shape[0]) as n:
        beyond = tirx.Or(a.ids[n] < 0, a.ids[n] > padding)
        put(outside, outside[0] + tirx.Cast("int32", beyond))
    T.buffer_store(a.counts, outside[0], [1])


def _write_runs(a: SimpleNamespace, chunks: Any, counters: Any) -> None:
    """Make the counters places; write rows and begins of the runs, without a branch.

    Every row is written where the next run is; one without entries is overwritten.
    """
    used, runs = counter(), counter()

    def make_places(d: Any) -> None:
        def make_place(s: Any) -> None:
            here = T.Bind(tirx.Cast("int32", a.keys[s * counters + d]))
            T.buffer_store(a.keys, tirx.Cast(a.keys.dtype, used[0]), [s * counters + d])
            put(used, used[0] + here)

        if isinstance(chunks, int):
            for s in range(chunks):
                make_place(s)
        else:
            with T.serial(0, chunks) as s:
                make_place(s)

    with T.serial(0, a.num_rows) as d:
        begin = T.Bind(used[0])
        T.buffer_store(a.rows, tirx.Cast(a.rows.dtype, d), [runs[0]])
        T.buffer_store(a.offsets, begin, [runs[0]])
        make_places(d)
        put(runs, runs[0] + tirx.Cast("int32", used[0] > begin))
    T.buffer_store(a.offsets, used[0], [runs[0]])
    T.buffer_store(a.counts, runs[0], [0])
    make_places(a.num_rows)
