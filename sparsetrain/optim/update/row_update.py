# SPDX-License-Identifier: Apache-2.0
"""Row updates inside a kernel: duplicates are summed, the formula is applied, the row is written.

The update is not linear in the gradient, so a row's entries are summed first, in registers and in
their order, and the row is written once.

Parallel: rows, with one writer each, so the bits do not depend on the number of threads.
Vectorized: the columns of a row. Touched rows of a large table are in no cache, so they are
prefetched, one by one, while earlier rows are updated.
"""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, NamedTuple

from tvm import tirx
from tvm.script.ir_builder import tirx as T

from sparsetrain.kernels.builder import Prefetch, line_starts
from sparsetrain.tables.kernel_parts import Parameter, zero

LINES = 256  # most cache lines that are prefetched but not yet used
VALUE_LINES = 8  # most lines of a gradient row; more than for a weight row, since it is only summed


class Runs(NamedTuple):
    """Inside a kernel: the touched rows, and the entries of each.

    Parameters
    ----------
    rows : buffer (>= U,)
        The touched rows.
    order : callable
        ``order(n)`` is the entry at position n.
    offsets : buffer (>= U + 1,)
        First position of each row's entries.
    source : buffer (N,), optional
        Number of each entry's value row; by default the entry's own number.
    values : buffer (M, D)
        The value rows.
    """

    rows: Any
    order: Callable[[Any], Any]
    offsets: Any
    source: Any
    values: Any

    def value_row(self, place: Any) -> Any:
        """Return the value row of the entry at a position."""
        entry = self.order(place)
        return tirx.Cast("int64", entry if self.source is None else self.source[entry])


def update_rows(
    parameter: Parameter, runs: Runs, span: tuple[Any, Any], h: SimpleNamespace
) -> None:
    """Inside a kernel: update the rows of the runs [first, end) in `span`."""

    def update(run: Any) -> None:
        row = T.Bind(tirx.Cast("int64", runs.rows[run]))
        update_row(parameter, row, (runs.offsets[run], runs.offsets[run + 1]), runs, h)

    (first, end), prefetch = span, Prefetch(write=False, near=3).line
    lines, value_columns = parameter.lines(), line_starts(runs.values, VALUE_LINES)
    per_row = parameter.per_row
    count = sum(len(columns) for _, columns in lines) + len(per_row) + len(value_columns)
    ahead = max(16, min(64, LINES // count))
    with T.parallel(0, end - first) as task:
        run = T.Bind(first + task)
        later = T.Bind(tirx.min(run + ahead, end - 1))
        row = tirx.Cast("int64", runs.rows[later])
        for array, columns in lines:
            for column in columns:
                prefetch(array, [row, column])
        for array in per_row:
            prefetch(array, [row])
        for column in value_columns:
            prefetch(runs.values, [runs.value_row(runs.offsets[later]), column])
        update(run)


def update_row(
    parameter: Parameter,
    row: Any,
    span: tuple[Any, Any],
    runs: Runs,
    h: SimpleNamespace,
    may_be_empty: bool = False,
) -> None:
    """Sum a row's gradient entries, then update the row; by tiles if the formula allows it."""
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
