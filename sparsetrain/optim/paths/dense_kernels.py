# SPDX-License-Identifier: Apache-2.0
"""Kernels of the dense path: part the entries, add them into a buffer, update every row, clear.

The buffer holds the gradient of some rows of a table, in blocks of `BLOCK` rows; a block lies in
one run of rows of the table. It is zero between steps: only rows that were added to are cleared.

What is parallel: blocks, in the update. What is vectorised: the columns of a row. Parting, adding
and clearing are serial: N entries are few beside the rows, a row must sum its entries first to
last, as the row kernel does, and threads that each look for their own rows took longer, by branches
that cannot be predicted.
"""

from __future__ import annotations

from typing import Any

from tvm import tirx
from tvm.script.ir_builder import tirx as T
from tvm.tirx import PrimFunc

from sparsetrain.kernels.builder import buffer, extents, kernel, scalar
from sparsetrain.kernels.table_formats import computed_in
from sparsetrain.optim.kernel_parts import Parameter, step_numbers, zero
from sparsetrain.optim.kernel_spec import KernelSpec
from sparsetrain.sparse_tensor.kernels import column_tiles

BLOCK = 64  # rows; a multiple of 16 keeps every block on a cache line


def part_kernel(index_dtype: str, pooled: bool) -> PrimFunc:
    """Part entries into those of dense rows and the rest; both keep their order.

    Arguments: indices (N,), source (S,) int32, first, end, shift (Z,) int64 of each zone of dense
    rows; near_rows, near_source, far_rows, far_source (N,), counts (3,) int64, num_rows. A near row
    number is that of the buffer, ``row + shift``; a source is the value row of an entry. Counted
    are the near, the far, and the indices outside [0, num_rows].
    """
    with kernel() as built:
        entries, sources, zones = extents(3)
        indices = buffer("indices", (entries,), index_dtype)
        source = buffer("source", (sources,), "int32")
        first, end, shift = (buffer(n, (zones,), "int64") for n in ("first", "end", "shift"))
        near, near_source = (
            buffer("near_rows", (entries,), index_dtype),
            buffer("near_source", (entries,), "int32"),
        )
        far, far_source = (
            buffer("far_rows", (entries,), index_dtype),
            buffer("far_source", (entries,), "int32"),
        )
        counts = buffer("counts", (3,), "int64")
        num_rows = scalar("num_rows", "int64")
        found = T.alloc_local((2,), "int64")  # whether the row is dense, and its shift
        used = T.alloc_local((3,), "int64")
        for place in (0, 1, 2):
            T.buffer_store(used, tirx.const(0, "int64"), [place])
        with T.serial(0, entries) as n:
            row = T.Bind(tirx.Cast("int64", indices[n]))
            for place in (0, 1):
                T.buffer_store(found, tirx.const(0, "int64"), [place])
            with T.serial(0, zones) as z:
                inside = T.Bind(tirx.Cast("int64", tirx.And(row >= first[z], row < end[z])))
                T.buffer_store(found, found[0] + inside, [0])
                T.buffer_store(found, found[1] + inside * shift[z], [1])
            # Both are written and one counts: no branch to predict.
            drawn = source[n] if pooled else tirx.Cast("int32", n)
            T.buffer_store(near, tirx.Cast(index_dtype, row + found[1]), [used[0]])
            T.buffer_store(near_source, drawn, [used[0]])
            T.buffer_store(far, indices[n], [used[1]])
            T.buffer_store(far_source, drawn, [used[1]])
            T.buffer_store(used, used[0] + found[0], [0])
            T.buffer_store(used, used[1] + 1 - found[0], [1])
            outside = tirx.Or(row < 0, row > num_rows)
            T.buffer_store(used, used[2] + tirx.Cast("int64", outside), [2])
        for place in (0, 1, 2):
            T.buffer_store(counts, used[place], [place])
    return built.get()


def add_kernel(width: int, dtype: str, index_dtype: str) -> PrimFunc:
    """``gradient[rows[n]] += values[source[n]]``, in the order of n.

    Arguments: rows, source (N,), values (M, D), gradient (H, D).
    """
    with kernel() as built:
        entries, stored, height = extents(3)
        rows = buffer("rows", (entries,), index_dtype)
        source = buffer("source", (entries,), "int32")
        values = buffer("values", (stored, width), dtype)
        gradient = buffer("gradient", (height, width), dtype)

        def add(n: Any, column: Any) -> None:
            row, drawn = tirx.Cast("int64", rows[n]), tirx.Cast("int64", source[n])
            total = gradient[row, column] + values[drawn, column]
            T.buffer_store(gradient, total, [row, column])

        _each_element(entries, width, add)
    return built.get()


def clear_kernel(width: int, dtype: str, index_dtype: str) -> PrimFunc:
    """``gradient[rows[n]] = 0``. Arguments: rows (N,), gradient (H, D)."""
    with kernel() as built:
        entries, height = extents(2)
        rows = buffer("rows", (entries,), index_dtype)
        gradient = buffer("gradient", (height, width), dtype)

        def clear(n: Any, column: Any) -> None:
            T.buffer_store(gradient, zero(dtype), [tirx.Cast("int64", rows[n]), column])

        _each_element(entries, width, clear)
    return built.get()


def _each_element(entries: Any, width: int, work: Any) -> None:
    """Call ``work(n, column)`` for all entries, first to last."""
    tiles, lanes = column_tiles(width)
    with T.serial(0, entries) as n, T.serial(0, tiles) as tile, T.vectorized(0, lanes) as lane:
        work(n, tile * lanes + lane)


def block_update_kernel(spec: KernelSpec, width: int, dtype: str) -> PrimFunc:
    """In-place update of every row of blocks [begin, stop).

    Arguments: gradient (H, D), weight (V, D), one array per slot, first (K,) int64 and count (K,)
    int32 of each block's rows in the table, then the numbers of the step, begin, stop. The
    gradient of block k starts at row ``k * BLOCK``. `dtype` is the weight's.
    """
    with kernel() as built:
        height, table, blocks = extents(3)
        gradient = buffer("gradient", (height, width), computed_in(dtype))
        parameter = Parameter.declare(spec, table, width, dtype)
        first = buffer("first", (blocks,), "int64")
        count = buffer("count", (blocks,), "int32")
        tiles, lanes = parameter.tiles()
        h = step_numbers(spec, dtype)
        begin, stop = scalar("begin", "int64"), scalar("stop", "int64")
        with T.parallel(0, stop - begin) as task:
            block = T.Bind(begin + task)
            with T.serial(0, tirx.Cast("int64", count[block])) as i:
                row = T.Bind(first[block] + i)
                place = T.Bind(block * BLOCK + i)
                state = parameter.begin_row(row, lambda d: gradient[place, d], h)
                with T.serial(0, tiles) as tile, T.vectorized(0, lanes) as lane:
                    column = tile * lanes + lane
                    state.update(column, gradient[place, column])
                state.end()
    return built.get()
