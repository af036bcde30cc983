# SPDX-License-Identifier: Apache-2.0
"""CPU kernels of an update rule: in place on touched rows, or on a dense parameter.

The row kernel coalesces and updates in one pass: it sums the duplicates of a row in registers,
first to last, applies the formula once and writes the row once. Rows outside the plan are neither
read nor written. Duplicates must be summed first, because the update is not linear in the gradient.

Parallel: touched rows (one writer each) and blocks of a dense parameter; the bits do not depend on
the number of threads. Vectorised: the columns of a row, the elements of a block. The rows of a
large table are in no cache and are prefetched, see `row_prefetch`.
"""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, NamedTuple

from tvm import tirx
from tvm.script.ir_builder import tirx as T
from tvm.tirx import PrimFunc

from sparsetrain.kernels.builder import buffer, extents, kernel, scalar
from sparsetrain.kernels.table_formats import computed_in
from sparsetrain.optim.kernel_parts import Parameter, scalars, step_numbers, zero
from sparsetrain.optim.kernel_spec import KernelSpec
from sparsetrain.optim.row_prefetch import with_prefetched_rows

BLOCK = 1024  # elements of a dense parameter that one task updates


def row_update_kernel(
    spec: KernelSpec, width: int, dtype: str, index_dtype: str, pooled: bool, stamped: bool
) -> PrimFunc:
    """In-place update of the rows of a plan, of segments [first, end).

    Arguments: rows (U,), order (N,), offsets (U + 1,), source (S,), values (M, D), weight (V, D),
    one array per slot, (V, D) or (V,), if `stamped` last (V,), then the numbers of the step,
    first, end, and if `stamped` now, which is written to ``last[row]``. `dtype` is the weight's.
    """
    with kernel() as built:
        runs = Runs.declare(width, dtype, index_dtype, pooled)
        (table,) = extents(1)
        parameter = Parameter.declare(spec, table, width, dtype)
        last = buffer("last", (table,), "int32") if stamped else None
        h = step_numbers(spec, dtype)
        span = scalar("first", "int64"), scalar("end", "int64")
        stamp = None if last is None else (last, scalar("now", "int32"))
        update_rows(parameter, runs, span, h, stamp)
    return built.get()


class Runs(NamedTuple):
    """Inside a kernel: the entries of the gradient for each touched row.

    Parameters
    ----------
    rows : buffer (>= U,)
        The touched rows.
    order : callable
        ``order(n)`` is the entry that stands n-th.
    offsets : buffer (>= U + 1,)
        Begin of each row's entries.
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

    @classmethod
    def declare(cls, width: int, dtype: str, index_dtype: str, pooled: bool) -> Runs:
        """Those whose arrays become the next arguments of the kernel; `dtype` is the weight's."""
        entries, segments, sources, stored = extents(4)
        rows = buffer("rows", (segments,), index_dtype)
        order = buffer("order", (entries,), "int32")
        offsets = buffer("offsets", (segments + 1,), "int32")
        source = buffer("source", (sources,), "int32")
        values = buffer("values", (stored, width), computed_in(dtype))
        return cls(rows, lambda n: order[n], offsets, source if pooled else None, values)

    def value_row(self, place: Any) -> Any:
        """The value row of the entry that stands at a place."""
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

    with_prefetched_rows(parameter, runs, span, last, update)


def _update_row(
    parameter: Parameter, row: Any, span: tuple[Any, Any], runs: Runs, h: SimpleNamespace
) -> None:
    """Sum the entries of a run and apply the spec, tile by tile where a row allows it."""
    tiles, lanes = parameter.tiles()
    whole = parameter.spec.formula.by_row
    gradient = T.alloc_local((parameter.width if whole else lanes,), parameter.dtype)

    def sum_tile(start: Any, column: Any) -> None:
        first_row = T.Bind(runs.value_row(span[0]))
        with T.vectorized(0, lanes) as lane:
            value = zero(parameter.dtype) + runs.values[first_row, column + lane]
            T.buffer_store(gradient, value, [start + lane])
        with T.serial(0, span[1] - span[0] - 1) as entry:
            stored_row = T.Bind(runs.value_row(span[0] + 1 + entry))
            with T.vectorized(0, lanes) as lane:
                total = gradient[start + lane] + runs.values[stored_row, column + lane]
                T.buffer_store(gradient, total, [start + lane])

    if whole:
        with T.serial(0, tiles) as tile:
            sum_tile(tile * lanes, tile * lanes)
    state = parameter.begin_row(row, lambda d: gradient[d], h)
    with T.serial(0, tiles) as tile:
        if not whole:
            sum_tile(0, tile * lanes)
        with T.vectorized(0, lanes) as lane:
            column = tile * lanes + lane
            state.update(column, gradient[column if whole else lane])
    state.end()


# (parameter, gradient, scalars, first, end): writes their update into a kernel.
DenseBody = Callable[[Parameter, Any, SimpleNamespace, Any, Any], None]


def dense_update_kernel(spec: KernelSpec, dtype: str, body: DenseBody | None = None) -> PrimFunc:
    """In-place update of rows [first, end) of a parameter seen as (rows, columns).

    Any shape, one compile. Arguments: gradient (end - first, C), weight (R, C), one array per slot,
    then the scalars of the spec, first, end. Formulas without a per-row part take elements
    [first, end) of (1, R * C), and a gradient (1, end - first). `body` is the CPU's by default.
    """
    with kernel() as built:
        height, width, given, across = extents(4)
        by_row = spec.formula.by_row
        gradient = buffer("gradient", (given, width if by_row else across), dtype)
        parameter = Parameter.declare(spec, height, width, dtype)
        h = scalars(spec.scalars, dtype)
        first, end = scalar("first", "int64"), scalar("end", "int64")
        (body or dense_body)(parameter, gradient, h, first, end)
    return built.get()


def dense_body(
    parameter: Parameter, gradient: Any, h: SimpleNamespace, first: Any, end: Any
) -> None:
    """Inside a kernel: update rows, or elements of the one row, [first, end)."""
    tasks, work = dense_tasks(parameter, gradient, h, (first, end))
    with T.parallel(0, tasks) as task:
        work(task)


def dense_tasks(
    parameter: Parameter, gradient: Any, h: SimpleNamespace, span: tuple[Any, Any]
) -> tuple[Any, Callable[[Any], None]]:
    """Count the independent parts of an update, and return what emits one by number."""
    first, end = span

    def row(task: Any) -> None:
        state = parameter.begin_row(T.Bind(first + task), lambda d: gradient[task, d], h)
        with T.serial(0, parameter.width) as d:
            state.update(d, gradient[task, d])
        state.end()

    def block(task: Any) -> None:
        begin = T.Bind(task * BLOCK)
        state = parameter.begin_row(0, lambda d: gradient[0, d], h)
        with T.serial(0, tirx.min(BLOCK, end - first - begin)) as d:
            state.update(first + begin + d, gradient[0, begin + d])

    if parameter.spec.formula.by_row:
        return end - first, row
    return tirx.ceildiv(end - first, BLOCK), block
