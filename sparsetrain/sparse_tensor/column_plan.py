# SPDX-License-Identifier: Apache-2.0
"""The plan of ids (B, F) whose columns lie in tables of their own: sorted column by column.

`plan_kernel` sorts all ids on the bits of the storage's rows, three digits for 33 million. A column
needs those of its own table alone, or is counted, if that has no more rows than the batch; and it
stays in the first-level cache meanwhile. The rows of one table come before those of the next, so
the sorted columns in the order of their tables are the sorted ids: the same plan, to the bit.

What is parallel: columns, each with one writer. Cost: B entries times the digits of its table for
each column, and two passes over them; of a counted one three, and two over its rows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import numpy as np
from tvm import tirx
from tvm.script.ir_builder import tirx as T
from tvm.tirx import PrimFunc, const

from sparsetrain import runtime
from sparsetrain.kernels.builder import buffer, counter, extents, kernel, put
from sparsetrain.sparse_tensor.sort_chunks import BEGIN, NOTES, OUTSIDE, RUNS, digits_of

Columns = tuple[tuple[int, int], ...]  # of each feature: first row of its table, and its rows
Work = Callable[[SimpleNamespace, Any], None]  # emits what is done for the column at a place

# What the kernel is told of a column: where it is, its table, how it is sorted; and which column
# is the turn of the task of this number, so that one thread does not get all large tables.
FEATURE, FIRST, ROWS, PASSES, BITS, TURN = range(6)
GOLDEN = 0.6180339887498949  # its multiples, less whole numbers, spread evenly
EACH = 2  # columns, at least, of a thread


def are_sorted_apart(columns: Sequence[tuple[int, int]]) -> bool:
    """Whether each has a table of its own, and there are enough of them for all threads."""
    rising = sorted(columns)
    apart = all(first + rows <= after for (first, rows), (after, _) in pairwise(rising))
    return apart and len(columns) >= EACH * runtime.num_threads()


def column_table(columns: Columns, index_dtype: str) -> np.ndarray:
    """The columns in the order of their tables, as the kernel wants them: (F, 6)."""
    order = sorted(range(len(columns)), key=lambda feature: columns[feature])
    turns = sorted(range(len(columns)), key=lambda place: place * GOLDEN % 1)
    table = [
        (feature, *columns[feature], *digits_of(columns[feature][1] - 1, index_dtype), turn)
        for feature, turn in zip(order, turns, strict=True)
    ]
    return np.array(table, index_dtype)


def column_plan_kernel(index_dtype: str, features: int) -> PrimFunc:
    """`plan_kernel` for the ids of such columns.

    Arguments: ids (B F,), keys (2 B F,) and order (2, B F) to sort in, notes (S >= F, NOTES) int32,
    rows (B F,), offsets (B F + 1,), counts (2,), columns (F, 6) from `column_table`. An id outside
    its column's table counts as outside, and then nothing else means anything.
    """
    with kernel() as built:
        entries, chunks = extents(2)
        a = SimpleNamespace(
            features=features,
            ids=buffer("ids", (entries,), index_dtype),
            keys=buffer("keys", (2 * entries,), index_dtype),
            order=buffer("order", (2, entries), "int32"),
            notes=buffer("notes", (chunks, NOTES), "int32"),
            rows=buffer("rows", (entries,), index_dtype),
            offsets=buffer("offsets", (entries + 1,), "int32"),
            counts=buffer("counts", (2,), "int32"),
            columns=buffer("columns", (features, 6), index_dtype),
            batch=T.Bind(tirx.floordiv(entries, features)),
        )
        _each_column(a, _count, _sort)
        _add_up(a)
        _each_column(a, _write_counted_runs, _write_runs)
    return built.get()


def _each_column(a: SimpleNamespace, counted: Work, by_digits: Work) -> None:
    """Call one of both for each column, by how it is sorted."""
    with T.parallel(0, a.features) as task:
        place = T.Bind(tirx.Cast("int64", a.columns[task, TURN]))
        with T.If(_is_counted(a, place)):
            with T.Then():
                counted(a, place)
            with T.Else():
                by_digits(a, place)


def _is_counted(a: SimpleNamespace, place: Any) -> Any:
    """Whether a column has a counter for each row, in its half 1 of `keys`; `count_sort` says how.

    Its half 0 has the rows then, in the order of the entries.
    """
    return a.columns[place, ROWS] <= tirx.Cast(a.columns.dtype, a.batch)


def _counters(a: SimpleNamespace, place: Any) -> tuple[Any, Any]:
    """Where they begin, and how many."""
    begin = T.Bind(a.ids.shape[0] + place * a.batch)
    return begin, T.Bind(tirx.Cast("int64", a.columns[place, ROWS]))


def _count(a: SimpleNamespace, place: Any) -> None:
    """Sort the entries; what counted a row is then where its run ends."""
    outside, runs = counter(), counter()
    feature = T.Bind(tirx.Cast("int64", a.columns[place, FEATURE]))
    base, (counters, rows) = T.Bind(place * a.batch), _counters(a, place)
    with T.serial(0, rows) as d:
        T.buffer_store(a.keys, const(0, a.keys.dtype), [counters + d])
    with T.serial(0, a.batch) as b:
        row = T.Bind(a.ids[b * a.features + feature] - a.columns[place, FIRST])
        last = a.columns[place, ROWS] - 1
        near = T.Bind(tirx.max(tirx.min(row, last), const(0, a.keys.dtype)))
        put(outside, outside[0] + tirx.Cast("int32", near != row))
        T.buffer_store(a.keys, near, [base + b])
        T.buffer_store(a.keys, a.keys[counters + near] + 1, [counters + near])
    T.buffer_store(a.notes, outside[0], [place, OUTSIDE])
    used = counter()
    with T.serial(0, rows) as d:
        here = T.Bind(tirx.Cast("int32", a.keys[counters + d]))
        T.buffer_store(a.keys, tirx.Cast(a.keys.dtype, used[0]), [counters + d])
        put(used, used[0] + here)
        put(runs, runs[0] + tirx.Cast("int32", here > 0))
    T.buffer_store(a.notes, runs[0], [place, RUNS])
    with T.serial(0, a.batch) as b:
        row = T.Bind(a.keys[base + b])
        free = T.Bind(a.keys[counters + row])
        T.buffer_store(a.keys, free + 1, [counters + row])
        T.buffer_store(a.order, tirx.Cast("int32", b * a.features + feature), [0, base + free])


def _write_counted_runs(a: SimpleNamespace, place: Any) -> None:
    """Rows and ends of a column's runs: every row of the table writes those of the last run."""
    base, (counters, rows) = T.Bind(place * a.batch), _counters(a, place)
    begin = T.Bind(a.notes[place, BEGIN])
    run, row, end = counter(begin), counter(), counter()
    with T.serial(0, rows) as d:
        here = T.Bind(tirx.Cast("int32", a.keys[counters + d]))
        occurs = T.Bind(here > end[0])
        put(row, tirx.Select(occurs, tirx.Cast("int32", d), row[0]))
        put(run, run[0] + tirx.Cast("int32", occurs))
        put(end, here)
        after = T.Bind(tirx.max(run[0], begin + 1))  # before the first run, that is what follows
        T.buffer_store(
            a.rows, a.columns[place, FIRST] + tirx.Cast(a.rows.dtype, row[0]), [after - 1]
        )
        T.buffer_store(a.offsets, tirx.Cast("int32", base) + here, [after])


def _read(a: SimpleNamespace, place: Any) -> None:
    """Rows of the table and numbers of the entries, into the half that the first pass reads."""
    outside = counter()
    feature = T.Bind(tirx.Cast("int64", a.columns[place, FEATURE]))
    half = T.Bind(tirx.Cast("int32", a.columns[place, PASSES]) % 2)
    keys = T.Bind(half * a.ids.shape[0] + place * a.batch)
    with T.serial(0, a.batch) as b:
        entry = T.Bind(b * a.features + feature)
        row = T.Bind(a.ids[entry] - a.columns[place, FIRST])
        beyond = tirx.Or(row < 0, row >= a.columns[place, ROWS])
        put(outside, outside[0] + tirx.Cast("int32", beyond))
        T.buffer_store(a.keys, row, [keys + b])
        T.buffer_store(a.order, tirx.Cast("int32", entry), [half, place * a.batch + b])
    T.buffer_store(a.notes, outside[0], [place, OUTSIDE])


def _sort(a: SimpleNamespace, place: Any) -> None:
    """Sort the entries, digit by digit from the lowest; the last pass writes to half 0."""
    _read(a, place)
    passes, bits = (T.Bind(tirx.Cast("int32", a.columns[place, n])) for n in (PASSES, BITS))
    digits = T.Bind(const(1, "int32") << bits)
    mask = T.Bind(tirx.Cast(a.ids.dtype, digits - 1))
    base = T.Bind(place * a.batch)
    with T.serial(0, passes) as number:
        # The last pass writes to half 0. Not `passes - 1 - number`: of an index that falls as a
        # loop's variable rises, modulo a number, TVM 0.27 makes another one (`FlattenBuffer`).
        to = T.Bind((passes + 1 + number) % 2)
        shift = T.Bind(tirx.Cast(a.ids.dtype, number * bits))

        read, written = (T.Bind(half * a.ids.shape[0] + base) for half in (1 - to, to))

        def digit(n: Any) -> Any:
            key = a.keys[read + n]  # noqa: B023 (called at once)
            return T.Bind(tirx.Cast("int32", tirx.bitwise_and(key >> shift, mask)))  # noqa: B023

        with T.serial(0, digits) as d:
            T.buffer_store(a.notes, const(0, "int32"), [place, d])
        with T.serial(0, a.batch) as n:
            d = digit(n)
            T.buffer_store(a.notes, a.notes[place, d] + 1, [place, d])
        _make_places(a.notes, lambda d: [place, d], digits)
        with T.serial(0, a.batch) as n:
            d = digit(n)
            free = T.Bind(a.notes[place, d])
            T.buffer_store(a.notes, free + 1, [place, d])
            T.buffer_store(a.keys, a.keys[read + n], [written + free])
            T.buffer_store(a.order, a.order[1 - to, base + n], [to, base + free])
    _count_runs(a, place)


def _make_places(notes: Any, index: Callable[[Any], list[Any]], count: Any) -> Any:
    """Turn counters into the sums of those before them; return the sum of all."""
    running = counter()
    with T.serial(0, count) as d:
        here = T.Bind(notes[tuple(index(d))])
        T.buffer_store(notes, running[0], index(d))
        put(running, running[0] + here)
    return running[0]


def _count_runs(a: SimpleNamespace, place: Any) -> None:
    runs, base = counter(1), T.Bind(place * a.batch)
    with T.serial(0, a.batch - 1) as n:
        put(runs, runs[0] + tirx.Cast("int32", _starts(a, base + n + 1)))
    T.buffer_store(a.notes, runs[0], [place, RUNS])


def _starts(a: SimpleNamespace, n: Any) -> Any:
    """Whether a run starts at a place; not asked of the first of a column."""
    return a.keys[n] != a.keys[n - 1]


def _add_up(a: SimpleNamespace) -> None:
    """Where each column's runs begin, and the two counts."""
    outside = counter()
    with T.serial(0, a.features) as place:
        T.buffer_store(a.notes, a.notes[place, RUNS], [place, BEGIN])
        put(outside, outside[0] + a.notes[place, OUTSIDE])
    T.buffer_store(a.counts, _make_places(a.notes, lambda place: [place, BEGIN], a.features), [0])
    T.buffer_store(a.counts, outside[0], [1])
    T.buffer_store(a.offsets, const(0, "int32"), [0])


def _write_runs(a: SimpleNamespace, place: Any) -> None:
    """Rows and ends of a column's runs: every entry writes, the last one of a run is right."""
    run = counter(a.notes[place, BEGIN])
    base, first = T.Bind(place * a.batch), T.Bind(a.columns[place, FIRST])

    def write(n: Any) -> None:
        T.buffer_store(a.rows, first + a.keys[n], [run[0]])
        T.buffer_store(a.offsets, tirx.Cast("int32", n + 1), [run[0] + 1])

    with T.serial(0, a.batch - 1) as n:
        write(base + n)
        starts = _starts(a, base + n + 1)
        put(run, run[0] + tirx.Cast("int32", starts))
    write(base + a.batch - 1)
