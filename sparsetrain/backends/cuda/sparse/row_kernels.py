# SPDX-License-Identifier: Apache-2.0
"""CUDA kernels for row-sparse tensors: scatter, squares of rows, searches and comparisons.

`sparse_tensor.segment_kernels` documents their meaning and preconditions. Every result has one
writer, every sum has a fixed order, and there are no atomic operations, so the bits are the same in
every run. `sort` has the kernels that sort ids, `runs` those that sum runs of equal ids.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tvm import tirx
from tvm.script.ir_builder import tirx as T
from tvm.tirx import PrimFunc

from sparsetrain.backends.cuda.sparse.parts import (
    THREADS,
    barrier,
    blocks_of_threads,
    each_of,
    shared,
)
from sparsetrain.kernels.builder import buffer, extents, kernel, scalar
from sparsetrain.kernels.loops import Number

SCATTERERS = 256  # number of thread blocks that share the rows of a dense gradient


def scatter_add_kernel(width: int, dtype: str, index_dtype: str, pooled: bool) -> PrimFunc:
    """Return the kernel that sets `out` to 0, then adds ``out[ids[n]] += values[source[n]]``.

    Entries are added in order of n, and padding is skipped. Block k of `SCATTERERS` owns the rows v
    with ``v % SCATTERERS == k``. It reads all ids and adds the entries of its rows in order, all
    columns at once.
    """
    with kernel("scatter_add") as built:
        count, stored, sources, height = extents(4)
        ids = buffer("ids", (count,), index_dtype)
        values = buffer("values", (stored, width), dtype)
        source = buffer("source", (sources,), "int32" if pooled else index_dtype)
        out = buffer("out", (height, width), dtype)
        with each_of(height * width) as number:
            place = [tirx.floordiv(number, width), tirx.floormod(number, width)]
            T.buffer_store(out, tirx.const(0, dtype), place)
        with entries_by_owner(ids, height) as (thread, entry, row):
            drawn = T.Bind(tirx.Cast("int64", source[entry]) if pooled else entry)
            with T.serial(0, -(-width // THREADS)) as turn:
                column = T.Bind(turn * THREADS + thread)
                with T.If(column < width), T.Then():
                    T.buffer_store(out, out[row, column] + values[drawn, column], [row, column])
    return built.get()


@contextmanager
def entries_by_owner(ids: Any, height: Any) -> Iterator[tuple[Any, Any, Any]]:
    """Loop in each block over the entries of its rows, in order; yield thread, entry and row."""
    count = ids.shape[0]
    with blocks_of_threads(SCATTERERS) as (block, thread):
        tile = shared(THREADS, "int64")
        with T.serial(0, tirx.ceildiv(count, THREADS)) as turn:
            T.buffer_store(tile, height, [thread])
            with T.If(turn * THREADS + thread < count), T.Then():
                T.buffer_store(tile, tirx.Cast("int64", ids[turn * THREADS + thread]), [thread])
            barrier()
            with T.serial(0, THREADS) as k:
                row = T.Bind(tile[k])
                mine = tirx.floormod(row, SCATTERERS) == block
                with T.If(tirx.And(tirx.And(row >= 0, row < height), mine)), T.Then():
                    yield thread, T.Bind(turn * THREADS + k), row
            barrier()


def spread_kernel(width: int, dtype: str, index_dtype: str) -> PrimFunc:
    """Return the kernel that sets `out` to 0, then ``out[rows[u] - base] = values[u]``.

    Arguments: rows (U,), all different, values (U, D), out (H, D), base, first, end. Only the rows
    with first <= u < end are written.
    """
    with kernel("spread") as built:
        segments, stored, height = extents(3)
        rows = buffer("rows", (segments,), index_dtype)
        values = buffer("values", (stored, width), dtype)
        out = buffer("out", (height, width), dtype)
        base, first, end = (scalar(name, "int64") for name in ("base", "first", "end"))
        with each_of(height * width) as number:
            place = [tirx.floordiv(number, width), tirx.floormod(number, width)]
            T.buffer_store(out, tirx.const(0, dtype), place)
        with each_of((end - first) * width) as number:
            segment = T.Bind(first + tirx.floordiv(number, width))
            column = T.Bind(tirx.floormod(number, width))
            row = T.Bind(tirx.Cast("int64", rows[segment]) - base)
            T.buffer_store(out, values[segment, column], [row, column])
    return built.get()


def rows_below_kernel(index_dtype: str) -> PrimFunc:
    """Return the kernel that counts the rows below each edge, among the first `count` sorted rows.

    Arguments: rows (U,), edges (E,), below (E,), which receives the counts, and count.
    """
    with kernel("rows_below") as built:
        segments, given = extents(2)
        rows = buffer("rows", (segments,), index_dtype)
        edges = buffer("edges", (given,), "int64")
        below = buffer("below", (given,), "int64")
        count = scalar("count", "int64")
        with each_of(given) as number:
            low, high = Number("int64"), Number("int64")
            high.set(count)
            with T.While(low.now < high.now):
                middle = T.Bind(tirx.floordiv(low.now + high.now, 2))
                is_below = T.Bind(tirx.Cast("int64", rows[middle]) < edges[number])
                low.set(tirx.if_then_else(is_below, middle + 1, low.now))
                high.set(tirx.if_then_else(is_below, high.now, middle))
            T.buffer_store(below, low.now, [number])
    return built.get()


def differ_kernel(index_dtype: str) -> PrimFunc:
    """Return the kernel that sets `found` (1,) to 1 if two arrays of ids (N,) differ, else 0."""
    with kernel("differ") as built:
        (count,) = extents(1)
        ids, others = (buffer(name, (count,), index_dtype) for name in ("ids", "others"))
        found = buffer("found", (1,), "int32")
        with each_of(tirx.const(1, "int64")) as number:
            T.buffer_store(found, tirx.const(0, "int32"), [number])
        with each_of(count) as n, T.If(ids[n] != others[n]), T.Then():
            # Many threads may write here; they all write 1.
            T.buffer_store(found, tirx.const(1, "int32"), [0])
    return built.get()


def fill_kernel(dtype: str) -> PrimFunc:
    """Return the kernel that writes a number to the elements [first, end) of an array (N,)."""
    with kernel("fill") as built:
        out = buffer("out", extents(1), dtype)
        value = scalar("value", dtype)
        first, end = scalar("first", "int64"), scalar("end", "int64")
        with each_of(end - first) as n:
            T.buffer_store(out, value, [first + n])
    return built.get()


def count_up_kernel() -> PrimFunc:
    """Return the kernel that sets each element of an int32 array (N,) to its index."""
    with kernel("count_up") as built:
        out = buffer("out", extents(1), "int32")
        with each_of(out.shape[0]) as n:
            T.buffer_store(out, tirx.Cast("int32", n), [n])
    return built.get()


def row_squares_kernel(width: int, dtype: str) -> PrimFunc:
    """Return the kernel that computes the sum of squares of each row, in float64."""
    with kernel("row_squares") as built:
        (height,) = extents(1)
        values = buffer("values", (height, width), dtype)
        out = buffer("out", (height,), "float64")
        with each_of(height) as row:
            total = Number("float64")
            with T.serial(0, width) as column:
                value = tirx.Cast("float64", values[row, column])
                total.add(value * value)
            T.buffer_store(out, total.now, [row])
    return built.get()
