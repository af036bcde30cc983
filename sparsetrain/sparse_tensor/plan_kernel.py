# SPDX-License-Identifier: Apache-2.0
"""The CPU kernel for a `CoalescePlan`: a radix sort of ids, and the runs of equal ids.

A stable sort from the lowest digit up. Each chunk of the entries counts its digits, then places its
entries behind the previous chunks' entries, so any number of chunks gives the same order. Runs are
counted and written chunk by chunk too; a chunk begins at the start of a run, so each element has
one writer.

Chunks run in parallel; their number is an extent of an argument. Cost: N entries times the digits
of the number of rows (not of the dtype), and two passes over the sorted ids.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import cache
from types import SimpleNamespace
from typing import Any

import numpy as np
from tvm import tirx
from tvm.script.ir_builder import tirx as T
from tvm.tirx import PrimFunc, const

from sparsetrain.kernels.builder import buffer, counter, extents, kernel, put, scalar

DIGIT_BITS = 11  # at most this many: 2048 counters of 4 bytes stay in the first-level cache
DIGITS = 1 << DIGIT_BITS
# Positions of further numbers in a chunk's notes, after the counters, which end at a cache line.
PADDING, OUTSIDE, BEGIN, RUNS = range(DIGITS, DIGITS + 4)
CHUNK_NOTES = DIGITS + 16  # length of a chunk's notes

Chunks = Callable[[int, Any], AbstractContextManager[Any]]  # a loop: parallel, or not
Entries = Callable[[Any], tuple[Any, Any]]  # position -> id and number of the entry there


@cache
def digits_of(num_rows: int, index_dtype: str, most: int = DIGIT_BITS) -> tuple[int, int]:
    """Return the fewest passes of at most `most` bits, and the fewest bits for these passes."""
    # Not more bits than an index has: a shift past its width is undefined.
    bits = max(1, min(int(num_rows).bit_length(), np.iinfo(index_dtype).bits - 1))
    passes = -(-bits // most)
    return passes, -(-bits // passes)


def plan_kernel(index_dtype: str, parallel: bool = True) -> PrimFunc:
    """Return the kernel that finds unique rows of ids and the entries of each row.

    Arguments: ids (N,), keys (K >= 2 N,) and order (2, N) to sort in, notes (S, CHUNK_NOTES) int32
    for S chunks, rows (N,), offsets (N + 1,), counts (2,), num_rows, which determines the sorted
    digits, as in `digits_of`.

    Row 0 of `order` receives the positions of the ids in sorted order, `rows` the unique rows, and
    `offsets` the beginning of each run and the end of the last. Padding (ids equal to `num_rows`)
    comes last and belongs to no run. `counts` receives the number of unique rows and the number of
    ids outside [0, num_rows]; if there are any, all other results are undefined. Without `parallel`
    no thread is started, and S is 1.
    """
    with kernel() as built:
        # If the number of chunks is static, there are no loops over chunks, which take half of the
        # time for 128 ids.
        entries, room, chunks = extents(3) if parallel else (*extents(2), 1)
        a = SimpleNamespace(
            ids=buffer("ids", (entries,), index_dtype),
            keys=buffer("keys", (room,), index_dtype),
            order=buffer("order", (2, entries), "int32"),
            notes=buffer("notes", (chunks, CHUNK_NOTES), "int32"),
            rows=buffer("rows", (entries,), index_dtype),
            offsets=buffer("offsets", (entries + 1,), "int32"),
            counts=buffer("counts", (2,), "int32"),
            num_rows=scalar("num_rows", "int64"),
        )
        a.passes, a.bits = _digits_of(a.num_rows, index_dtype)
        _radix_sort(a, T.parallel if parallel else T.serial)
    return built.get()


def _digits_of(num_rows: Any, index_dtype: str) -> tuple[Any, Any]:
    """Inside a kernel: emit `digits_of`; both numbers are int32."""
    # 0 counts as one bit, like 1, because `clz` of 0 is undefined.
    unused = tirx.Cast("int32", tirx.clz(tirx.bitwise_or(num_rows, const(1, "int64"))))
    bits = T.Bind(tirx.min(64 - unused, np.iinfo(index_dtype).bits - 1))
    passes = T.Bind(tirx.truncdiv(bits + (DIGIT_BITS - 1), const(DIGIT_BITS, "int32")))
    return passes, T.Bind(tirx.truncdiv(bits + passes - 1, passes))


def _share(a: SimpleNamespace, s: Any) -> tuple[Any, Any]:
    """Return the begin and end of a chunk's entries."""
    entries, chunks = a.ids.shape[0], a.notes.shape[0]
    return T.Bind(entries * s // chunks), T.Bind(entries * (s + 1) // chunks)


def _radix_sort(a: SimpleNamespace, over: Chunks) -> None:
    """Emit the plan of `a.ids`; `over` loops over chunks."""
    entries = a.ids.shape[0]
    _sort_digit(a, over, const(0, "int32"), lambda n: (a.ids[n], tirx.Cast("int32", n)), check=True)
    with T.serial(0, a.passes - 1) as after:
        half = T.Bind(
            (a.passes + 1 + after) % 2
        )  # `FlattenBuffer` of TVM 0.27 breaks a falling index
        _sort_digit(a, over, after + 1, lambda n: (a.keys[half * entries + n], a.order[half, n]))
    padding, outside = counter(), counter()
    with T.serial(0, a.notes.shape[0]) as s:
        put(padding, padding[0] + a.notes[s, PADDING])
        put(outside, outside[0] + a.notes[s, OUTSIDE])
    T.buffer_store(a.counts, outside[0], [1])
    _find_runs(a, over, T.Bind(a.ids.shape[0] - tirx.Cast("int64", padding[0])))


def _sort_digit(
    a: SimpleNamespace, over: Chunks, number: Any, entry: Entries, *, check: bool = False
) -> None:
    """Emit the sort of the entries by one digit; the last pass writes to half 0."""
    entries, chunks = a.ids.shape[0], a.notes.shape[0]
    digits = T.Bind(const(1, "int32") << a.bits)
    shift = T.Bind(tirx.Cast(a.ids.dtype, number * a.bits))
    mask = T.Bind(tirx.Cast(a.ids.dtype, digits - 1))
    half = T.Bind((a.passes + 1 + number) % 2)

    def digit(key: Any) -> Any:
        return tirx.Cast("int32", tirx.bitwise_and(key >> shift, mask))

    with over(0, chunks) as s:
        with T.serial(0, digits) as d:
            T.buffer_store(a.notes, const(0, "int32"), [s, d])
        begin, end = _share(a, s)
        if check:
            _check(a, s, begin, end)
        with T.serial(0, end - begin) as n:
            d = T.Bind(digit(entry(begin + n)[0]))
            T.buffer_store(a.notes, a.notes[s, d] + 1, [s, d])
    running = counter()
    with T.serial(0, digits) as d, T.serial(0, chunks) as s:
        count = T.Bind(a.notes[s, d])
        T.buffer_store(a.notes, running[0], [s, d])
        put(running, running[0] + count)
    with over(0, chunks) as s:
        begin, end = _share(a, s)
        with T.serial(0, end - begin) as n:
            key, position = (T.Bind(value) for value in entry(begin + n))
            d = T.Bind(digit(key))
            place = T.Bind(a.notes[s, d])
            T.buffer_store(a.notes, place + 1, [s, d])
            T.buffer_store(a.keys, key, [half * entries + place])
            T.buffer_store(a.order, position, [half, place])


def _check(a: SimpleNamespace, s: Any, begin: Any, end: Any) -> None:
    """Count the ids of a chunk that are padding, and those out of range."""
    padding, outside = counter(), counter()
    with T.serial(0, end - begin) as n:
        row = T.Bind(tirx.Cast("int64", a.ids[begin + n]))
        beyond = tirx.Or(row < 0, row > a.num_rows)
        put(padding, padding[0] + tirx.Cast("int32", row == a.num_rows))
        put(outside, outside[0] + tirx.Cast("int32", beyond))
    T.buffer_store(a.notes, padding[0], [s, PADDING])
    T.buffer_store(a.notes, outside[0], [s, OUTSIDE])


def _find_runs(a: SimpleNamespace, over: Chunks, entries: Any) -> None:
    """Find the runs of the first `entries` sorted ids, which are not padding."""
    chunks = a.notes.shape[0]

    def starts(n: Any) -> Any:
        """Whether a run starts at an entry other than the first."""
        return a.keys[n] != a.keys[n - 1]

    def chunk(s: Any) -> tuple[Any, Any]:
        last = s == chunks - 1
        after = tirx.Cast("int64", a.notes[tirx.min(s + 1, chunks - 1), BEGIN])
        begin = T.Bind(tirx.Cast("int64", a.notes[s, BEGIN]))
        return begin, T.Bind(tirx.Select(last, entries, after))

    T.buffer_store(a.notes, const(0, "int32"), [0, BEGIN])
    with T.serial(0, chunks - 1) as before:
        s = T.Bind(before + 1)
        T.buffer_store(a.notes, _next_run(starts, entries * s // chunks, entries), [s, BEGIN])
    with over(0, chunks) as s:
        begin, end = chunk(s)
        runs = counter(tirx.Cast("int32", begin < end))
        with T.serial(0, tirx.max(end - begin - 1, const(0, "int64"))) as n:
            put(runs, runs[0] + tirx.Cast("int32", starts(begin + 1 + n)))
        T.buffer_store(a.notes, runs[0], [s, RUNS])
    running = counter()
    with T.serial(0, chunks) as s:
        count = T.Bind(a.notes[s, RUNS])
        T.buffer_store(a.notes, running[0], [s, RUNS])
        put(running, running[0] + count)
    T.buffer_store(a.counts, running[0], [0])
    T.buffer_store(a.offsets, const(0, "int32"), [0])
    with over(0, chunks) as s:
        begin, end = chunk(s)
        _write_runs(a, begin, end, starts, a.notes[s, RUNS])


def _next_run(starts: Callable[[Any], Any], place: Any, entries: Any) -> Any:
    """Return the first position from `place` on at which a run starts, or the end."""
    found = counter(tirx.Cast("int32", place))
    n = tirx.Cast("int64", found[0])
    inside = tirx.And(n > 0, n < entries)
    # Not `And`, which would evaluate the read on its right side too.
    with T.While(tirx.if_then_else(inside, tirx.Not(starts(n)), const(False, "bool"))):
        put(found, found[0] + 1)
    return found[0]


def _write_runs(a: SimpleNamespace, begin: Any, end: Any, starts: Any, first: Any) -> None:
    """Write rows and ends of the runs from `begin` to `end`, without branches.

    Every entry writes its row and a run end after itself; within a run, later entries overwrite
    earlier ones.
    """
    run = counter(first)

    def write(n: Any) -> None:
        T.buffer_store(a.rows, a.keys[n], [run[0]])
        T.buffer_store(a.offsets, tirx.Cast("int32", n + 1), [run[0] + 1])

    with T.serial(0, tirx.max(end - begin - 1, const(0, "int64"))) as n:
        write(begin + n)
        put(run, run[0] + tirx.Cast("int32", starts(begin + n + 1)))
    with T.If(begin < end), T.Then():
        write(end - 1)
