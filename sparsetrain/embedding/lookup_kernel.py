# SPDX-License-Identifier: Apache-2.0
"""The CPU kernel of a lookup of one row per id; `kernels` says what it takes for granted.

The rows of a large table are in no cache: the kernel asks for them some ids ahead. How is a table
by processor; the bits are the same.

- AMD's Zen: four lines of a row, into the first cache.
- Others: all lines, into the second cache, for which an Intel core can wait for more of them. A
  large result of wide rows is written past the caches: two cores of a Xeon gain up to a third,
  their reader's time counted too, from 64 columns on; at 32 and 16 they lose as much or more if
  the table lies in the caches. The second cache costs such a table up to a tenth.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

from tvm import DataType, tirx
from tvm.script.ir_builder import tirx as T
from tvm.tirx import PrimFunc

from sparsetrain.kernels.builder import Prefetch, buffer, extents, kernel
from sparsetrain.kernels.llvm import streaming_stores
from sparsetrain.kernels.llvm.transpose import PRAGMA
from sparsetrain.kernels.table_formats import computed_in, read_element, stored_width
from sparsetrain.runtime.host import host_target
from sparsetrain.runtime.target_features import select_by_cpu
from sparsetrain.sparse_tensor.kernels import column_tiles

Number = Callable[[Any], Any]  # the number of a row that stands in a column
Write = Callable[[Any, Any, Number], None]  # emits what writes row n of the result
Each = Callable[[Any], None]  # emits what is done for one n

LINE = 64  # bytes
LEAST_AHEAD, MOST_AHEAD = 16, 64  # ids between asking for a row and reading it
# Bytes of a result from which it may be written past the caches, and lie there for its reader: two
# cores with 2 MB of second-level cache each gain at 27 MB, at 14 MB some tables lose.
STREAMED = 20 << 20
TASK = 64  # rows of a task that writes past the caches


class RowPrefetch(NamedTuple):
    """How a processor is asked for rows.

    Parameters
    ----------
    prefetch : Prefetch
        For a line of them.
    row_lines : int
        Lines of a row that are asked for, at most.
    lines : int
        Lines of all rows that are asked for and not read yet, within `LEAST_AHEAD` and `MOST_AHEAD`
        rows.
    streamed_width : int or None
        From which width on a large result is written past the caches, None if never.
    """

    prefetch: Prefetch
    row_lines: int
    lines: int
    streamed_width: int | None


# See `select_by_cpu`.
PREFETCH = {
    "znver": RowPrefetch(Prefetch(write=False, near=3), 4, 64, None),
    "": RowPrefetch(Prefetch(write=False, near=2), 64, 256, 64),
}


@cache
def lookup_kernel(
    width: int, dtype: str, id_dtype: str, ahead: RowPrefetch | None = None
) -> PrimFunc:
    """``out[n] = table[ids[n]]``; `dtype` is the table's, `ahead` that of this processor."""
    ahead = ahead or select_by_cpu(PREFETCH)
    with kernel("lookup") as built:
        height, count = extents(2)
        table = buffer("table", (height, stored_width(width, dtype)), dtype)
        ids = buffer("ids", (count,), id_dtype)
        out = buffer("out", (count, width), computed_in(dtype))

        def copy(write: Write) -> Each:
            def row_of(n: Any) -> None:
                _ask_ahead(table, ids, n, ahead)
                row = T.Bind(_inside(ids[n], height))
                there = tirx.Cast("int64", ids[n]) == row
                write(out, n, lambda column: _number(table, row, column, there))

            return row_of

        if _may_stream(out, ahead):
            with T.If(count * (4 * width) >= STREAMED):
                with T.Then():
                    _each_of_tasks(count, copy(_stream_))
                with T.Else():
                    _each(count, copy(_store_))
        else:
            _each(count, copy(_store_))
    return built.get()


def _store_(out: Any, n: Any, number: Number) -> None:
    tiles, lanes = column_tiles(int(out.shape[1]))
    with T.serial(0, tiles) as t, T.vectorized(0, lanes) as d:
        T.buffer_store(out, number(t * lanes + d), [n, t * lanes + d])


def _stream_(out: Any, n: Any, number: Number) -> None:
    lanes = streaming_stores.LANES
    numbers = T.alloc_buffer((lanes,), "float32", scope="local")  # in a register
    with T.serial(0, int(out.shape[1]) // lanes) as t:
        with T.vectorized(0, lanes) as d:
            T.buffer_store(numbers, number(t * lanes + d), [d])
        streaming_stores.stream_(out, [n, t * lanes], numbers[tirx.Ramp(0, 1, lanes)])


def _may_stream(out: Any, ahead: RowPrefetch) -> bool:
    width = int(out.shape[1])
    return (
        ahead.streamed_width is not None
        and width >= ahead.streamed_width
        and width % streaming_stores.LANES == 0
        and str(out.dtype) == "float32"
        and streaming_stores.can_stream(host_target())
    )


def _each(count: Any, do: Each) -> None:
    with T.parallel(0, count) as n:
        do(n)


def _each_of_tasks(count: Any, do: Each) -> None:
    """By tasks of some rows, each with its fence at the end."""
    with (
        T.attr(0, PRAGMA, streaming_stores.HELPERS),
        T.parallel(0, tirx.ceildiv(count, TASK)) as task,
    ):
        first = T.Bind(task * TASK)
        with T.serial(0, tirx.min(count - first, tirx.const(TASK, "int64"))) as n:
            do(first + n)
        streaming_stores.fence_()


def _ask_ahead(table: Any, ids: Any, n: Any, ahead: RowPrefetch) -> None:
    """Prefetch the row of a later id to read it."""
    step = LINE * 8 // DataType(table.dtype).bits
    columns = range(0, min(int(table.shape[1]), ahead.row_lines * step), step)
    rows = max(LEAST_AHEAD, min(MOST_AHEAD, ahead.lines // len(columns)))
    later = T.Bind(_inside(ids[tirx.min(n + rows, ids.shape[0] - 1)], table.shape[0]))
    for column in columns:
        ahead.prefetch.line(table, [later, column])


def _inside(index: Any, rows: Any) -> Any:
    """The nearest row of a table; another number than `index` if that is outside."""
    wide = tirx.Cast("int64", index)
    return tirx.max(tirx.min(wide, rows - 1), tirx.const(0, "int64"))


def _number(table: Any, row: Any, column: Any, there: Any) -> Any:
    """What is stored, NaN for a row that is not `there`."""
    value = read_element(table, row, column)
    return tirx.Select(there, value, tirx.const(float("nan"), value.ty.dtype))
