# SPDX-License-Identifier: Apache-2.0
"""Row update kernel: the in-place update of a table by a row-sparse gradient.

It coalesces and updates in one pass: a row's duplicates are summed in registers, first to last, the
formula is applied once and the row is written once. The update is not linear in the gradient, so
summing first is necessary. Rows without an entry are neither read nor written, unless every row is
to be updated: then their gradient is 0.

What is parallel: rows, with one writer each; the bits do not depend on the number of threads.
What is vectorized: the columns of a row. Touched rows of a large table are in no cache, so they are
prefetched, one by one, while others are updated.
"""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, NamedTuple

from tvm import tirx
from tvm.script.ir_builder import tirx as T
from tvm.tirx import PrimFunc, const

from sparsetrain.kernels.builder import Prefetch, buffer, extents, kernel, line_starts
from sparsetrain.kernels.table_formats import computed_in, is_rounded
from sparsetrain.tables.formula import KernelSpec
from sparsetrain.tables.kernel_parts import (
    Parameter,
    bind_scalars,
    declare_numbers,
    declare_report,
    zero,
)

ROWS = 256  # per task when every row is updated
LINES = 256  # prefetched and not used yet
VALUE_LINES = 8  # of a row of the gradient; more than of a weight, as nothing is computed


class RowsKind(NamedTuple):
    """Everything about a table and its gradient that decides the code of a row update.

    Parameters
    ----------
    width : int
        Columns of the table.
    dtype : str
        Dtype of the table.
    index_dtype : str
        Dtype of the row indices.
    pooled : bool
        Whether entries name the value rows that they draw from.
    stamped : bool
        Whether the number of the step is written to the slot `last` of each updated row.
    every_row : bool
        Whether rows without an entry are updated too.
    """

    width: int
    dtype: str
    index_dtype: str
    pooled: bool
    stamped: bool = False
    every_row: bool = False


def rows_kernel(
    spec: KernelSpec,
    kind: RowsKind,
    rule: int,
    place: int,
    whole: bool,
) -> PrimFunc:
    """Build the update of a table, or of a range of its rows.

    Arguments: rows (N,), order (2, N), offsets (N + 1,), source (N,) if pooled, values (M, D),
    weight (V, D), one array per slot, last (V,) if stamped, counts (2,), report, numbers (R, K),
    keys (P, 5): two noise keys, the step's number, and the first and the end of the rows. `rule`
    and `place` are rows of the last two.
    """
    with kernel() as built:
        entries, stored, table = extents(3)
        rows = buffer("rows", (entries,), kind.index_dtype)
        order = buffer("order", (2, entries), "int32")
        offsets = buffer("offsets", (entries + 1,), "int32")
        source = buffer("source", (entries,), "int32") if kind.pooled else None
        values = buffer("values", (stored, kind.width), computed_in(kind.dtype))
        parameter = Parameter.declare(spec, table, kind.width, kind.dtype)
        last = buffer("last", (table,), "int32") if kind.stamped else None
        counts, report = buffer("counts", (2,), "int32"), declare_report()
        numbers, keys = declare_numbers(), buffer("keys", extents(2), "int64")
        runs = Runs(rows, lambda n: order[0, n], offsets, source, values)
        with T.If(report[0] == 0), T.Then():
            h = bind_scalars(spec, computed_in(kind.dtype), numbers, rule)
            if is_rounded(kind.dtype):
                h.keys = keys[place, 0], keys[place, 1]
            stamp = None if last is None else (last, tirx.Cast("int32", keys[place, 2]))
            used = T.Bind(tirx.Cast("int64", counts[0]))
            span = None if whole else (T.Bind(keys[place, 3]), T.Bind(keys[place, 4]))
            if kind.every_row:
                update_every_row(parameter, runs, used, span or (const(0, "int64"), table), h)
            else:
                within = tuple(first_from(rows, used, row) for row in span or ())
                update_rows(parameter, runs, within or (const(0, "int64"), used), h, stamp)
    return built.get()


class Runs(NamedTuple):
    """Inside a kernel: the touched rows, and the entries of each.

    Parameters
    ----------
    rows : buffer (>= U,)
        The touched rows.
    order : callable
        ``order(n)`` is the entry in place n.
    offsets : buffer (>= U + 1,)
        First place of each row's entries.
    source : buffer (N,), optional
        The value row that an entry draws from; by default the one of its own number.
    values : buffer (M, D)
        The value rows.
    """

    rows: Any
    order: Callable[[Any], Any]
    offsets: Any
    source: Any
    values: Any

    def value_row(self, place: Any) -> Any:
        """Return the value row of the entry in a place."""
        entry = self.order(place)
        return tirx.Cast("int64", entry if self.source is None else self.source[entry])


def update_rows(
    parameter: Parameter,
    runs: Runs,
    span: tuple[Any, Any],
    h: SimpleNamespace,
    stamp: tuple[Any, Any] | None = None,
) -> None:
    """Inside a kernel: update the rows of runs `span`; `stamp` is `last` and what it gets."""
    last, now = stamp or (None, None)

    def update(run: Any) -> None:
        row = T.Bind(tirx.Cast("int64", runs.rows[run]))
        _update_row(parameter, row, (runs.offsets[run], runs.offsets[run + 1]), runs, h)
        if last is not None:
            T.buffer_store(last, now, [row])

    (first, end), ask = span, Prefetch(write=False, near=3).line
    lines, value_columns = _lines_of(parameter), line_starts(runs.values, VALUE_LINES)
    per_row = [slot for slot in parameter.slots if len(slot.shape) == 1]
    count = sum(len(columns) for _, columns in lines) + len(per_row) + len(value_columns)
    ahead = max(16, min(64, LINES // count))
    with T.parallel(0, end - first) as task:
        run = T.Bind(first + task)
        later = T.Bind(tirx.min(run + ahead, end - 1))
        row = tirx.Cast("int64", runs.rows[later])
        for array, columns in lines:
            for column in columns:
                ask(array, [row, column])
        for array in per_row if last is None else (*per_row, last):
            ask(array, [row])
        for column in value_columns:
            ask(runs.values, [runs.value_row(runs.offsets[later]), column])
        update(run)


def _lines_of(parameter: Parameter) -> list[tuple[Any, list[int]]]:
    """Weights and slots of a row that are prefetched: arrays, and the columns where lines begin.

    At most four lines of each. Of a table that is rounded eight: rounding takes so many
    instructions that the processor, by itself, does not see the loads of the next rows.
    """
    most = 8 if is_rounded(parameter.stored) else 4
    arrays = [parameter.weight, *(slot for slot in parameter.slots if len(slot.shape) > 1)]
    return [(array, line_starts(array, most)) for array in arrays]


def update_every_row(
    parameter: Parameter, runs: Runs, used: Any, span: tuple[Any, Any], h: SimpleNamespace
) -> None:
    """Inside a kernel: update rows [first, end) of the table, with a gradient or without."""
    first, end = span
    with T.parallel(0, tirx.ceildiv(end - first, ROWS)) as task:
        begin = T.Bind(first + task * ROWS)
        run = T.alloc_local((1,), "int64")
        T.buffer_store(run, first_from(runs.rows, used, begin), [0])
        with T.serial(0, tirx.min(ROWS, end - begin)) as step:
            row, here = T.Bind(begin + step), T.Bind(run[0])
            # An unused run may hold any row: it is compared only behind the test of its number.
            touched = T.Bind(
                tirx.if_then_else(here < used, tirx.Cast("int64", runs.rows[here]) == row, False)
            )
            begins = tirx.if_then_else(touched, runs.offsets[here], 0)
            ends = tirx.if_then_else(touched, runs.offsets[here + 1], 0)
            _update_row(parameter, row, (T.Bind(begins), T.Bind(ends)), runs, h, may_be_empty=True)
            T.buffer_store(run, here + tirx.Cast("int64", touched), [0])


def _update_row(
    parameter: Parameter,
    row: Any,
    span: tuple[Any, Any],
    runs: Runs,
    h: SimpleNamespace,
    may_be_empty: bool = False,
) -> None:
    """Sum the entries of a run and apply the spec, tile by tile where a row allows it."""
    tiles, lanes = parameter.tiles()
    whole = parameter.spec.formula.by_row
    gradient = T.alloc_local((parameter.width if whole else lanes,), parameter.dtype)

    def store_sum(start: Any, column: Any) -> None:
        first_row = T.Bind(runs.value_row(span[0]))
        with T.vectorized(0, lanes) as lane:
            value = zero(parameter.dtype) + runs.values[first_row, column + lane]
            T.buffer_store(gradient, value, [start + lane])
        with T.serial(0, span[1] - span[0] - 1) as entry:
            stored_row = T.Bind(runs.value_row(span[0] + 1 + entry))
            with T.vectorized(0, lanes) as lane:
                total = gradient[start + lane] + runs.values[stored_row, column + lane]
                T.buffer_store(gradient, total, [start + lane])

    def sum_tile(start: Any, column: Any) -> None:
        if not may_be_empty:
            store_sum(start, column)
            return
        with T.If(span[0] < span[1]):
            with T.Then():
                store_sum(start, column)
            with T.Else(), T.vectorized(0, lanes) as lane:
                T.buffer_store(gradient, zero(parameter.dtype), [start + lane])

    if whole:
        with T.serial(0, tiles) as tile:
            sum_tile(tile * lanes, tile * lanes)
    count = tirx.Cast(parameter.dtype, span[1] - span[0])
    state = parameter.begin_row(row, lambda d: gradient[d], h, count)
    with T.serial(0, tiles) as tile:
        if not whole:
            sum_tile(0, tile * lanes)
        with T.vectorized(0, lanes) as lane:
            column = tile * lanes + lane
            state.update(column, gradient[column if whole else lane])
    state.end()


def first_from(rows: Any, used: Any, row: Any) -> Any:
    """Return the place of the first of some ascending rows that is `row` or more."""
    low, high = T.alloc_local((1,), "int64"), T.alloc_local((1,), "int64")
    T.buffer_store(low, const(0, "int64"), [0])
    T.buffer_store(high, used, [0])
    with T.While(low[0] < high[0]):
        middle = T.Bind((low[0] + high[0]) // 2)
        below = T.Bind(tirx.Cast("int64", rows[middle]) < row)
        T.buffer_store(low, tirx.Select(below, middle + 1, low[0]), [0])
        T.buffer_store(high, tirx.Select(below, high[0], middle), [0])
    return T.Bind(low[0])
