# SPDX-License-Identifier: Apache-2.0
"""Row update kernel: the in-place update of a table by a row-sparse gradient.

Rows without an entry are neither read nor written, unless every row is updated: then their gradient
is 0. `row_update` generates the update of one row.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, NamedTuple

from tvm import tirx
from tvm.script.ir_builder import tirx as T
from tvm.tirx import PrimFunc, const

from sparsetrain.kernels.builder import buffer, extents, kernel
from sparsetrain.kernels.table_formats import format_of
from sparsetrain.optim.update.row_update import Runs, update_row, update_rows
from sparsetrain.tables.formula import KernelSpec
from sparsetrain.tables.kernel_parts import (
    Parameter,
    bind_marks,
    bind_scalars,
    declare_numbers,
    declare_report,
)

ROWS = 256  # rows per task if every row is updated


class RowsKind(NamedTuple):
    """Everything about a table and its gradient that determines the code of a row update.

    Parameters
    ----------
    width : int
        Columns of the table.
    dtype : str
        Dtype of the table.
    index_dtype : str
        Dtype of the row indices.
    pooled : bool
        Whether entries have a `source`, the number of their value row.
    every_row : bool
        Whether rows without an entry are also updated.
    """

    width: int
    dtype: str
    index_dtype: str
    pooled: bool
    every_row: bool = False


def rows_kernel(
    spec: KernelSpec,
    kind: RowsKind,
    rule: int,
    place: int,
    whole: bool,
) -> PrimFunc:
    """Build the update of a table, or of a range of its rows.

    The kernel's arguments: rows (N,), order (2, N), offsets (N + 1,), source (N,) if pooled, values
    (M, D), weight (V, D), one array per slot, counts (2,), report, numbers (R, K), keys (P, 5 or
    7): three numbers for `Table.marks`, the first and the end of the rows and, if rows are rounded
    by number, the `begin` and `step` of their `Span`. `rule` is a row of `numbers`, `place` a row
    of `keys`.
    """
    form = format_of(kind.dtype)
    with kernel() as built:
        entries, stored, table = extents(3)
        rows = buffer("rows", (entries,), kind.index_dtype)
        order = buffer("order", (2, entries), "int32")
        offsets = buffer("offsets", (entries + 1,), "int32")
        source = buffer("source", (entries,), "int32") if kind.pooled else None
        values = buffer("values", (stored, kind.width), form.computed)
        parameter = Parameter.declare(spec, table, kind.width, kind.dtype)
        counts, report = buffer("counts", (2,), "int32"), declare_report()
        numbers, keys = declare_numbers(), buffer("keys", extents(2), "int64")
        runs = Runs(rows, lambda n: order[0, n], offsets, source, values)
        with T.If(report[0] == 0), T.Then():
            h = bind_scalars(spec, form.computed, numbers, rule)
            bind_marks(spec, form, h, lambda column: keys[place, column])
            h.numbers = keys[place, 5], keys[place, 6]
            used = T.Bind(tirx.Cast("int64", counts[0]))
            span = None if whole else (T.Bind(keys[place, 3]), T.Bind(keys[place, 4]))
            if kind.every_row:
                update_every_row(parameter, runs, used, span or (const(0, "int64"), table), h)
            else:
                within = tuple(first_from(rows, used, row) for row in span or ())
                update_rows(parameter, runs, within or (const(0, "int64"), used), h)
    return built.get()


def update_every_row(
    parameter: Parameter, runs: Runs, used: Any, span: tuple[Any, Any], h: SimpleNamespace
) -> None:
    """Inside a kernel: update rows [first, end) of the table, with or without a gradient."""
    first, end = span
    with T.parallel(0, tirx.ceildiv(end - first, ROWS)) as task:
        begin = T.Bind(first + task * ROWS)
        run = T.alloc_local((1,), "int64")
        T.buffer_store(run, first_from(runs.rows, used, begin), [0])
        with T.serial(0, tirx.min(ROWS, end - begin)) as step:
            row, here = T.Bind(begin + step), T.Bind(run[0])
            # An unused run may hold any row, so its number is tested before its row is compared.
            touched = T.Bind(
                tirx.if_then_else(here < used, tirx.Cast("int64", runs.rows[here]) == row, False)
            )
            begins = tirx.if_then_else(touched, runs.offsets[here], 0)
            ends = tirx.if_then_else(touched, runs.offsets[here + 1], 0)
            update_row(parameter, row, (T.Bind(begins), T.Bind(ends)), runs, h, may_be_empty=True)
            T.buffer_store(run, here + tirx.Cast("int64", touched), [0])


def first_from(rows: Any, used: Any, row: Any) -> Any:
    """Return the position of the first of the ascending `rows` that is at least `row`."""
    low, high = T.alloc_local((1,), "int64"), T.alloc_local((1,), "int64")
    T.buffer_store(low, const(0, "int64"), [0])
    T.buffer_store(high, used, [0])
    with T.While(low[0] < high[0]):
        middle = T.Bind((low[0] + high[0]) // 2)
        below = T.Bind(tirx.Cast("int64", rows[middle]) < row)
        T.buffer_store(low, tirx.Select(below, middle + 1, low[0]), [0])
        T.buffer_store(high, tirx.Select(below, high[0], middle), [0])
    return T.Bind(low[0])
