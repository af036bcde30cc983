# SPDX-License-Identifier: Apache-2.0
"""The CUDA kernels of row-sparse tensors: scatter, squares of rows.

Same preconditions and meanings as `kernels`. Every result has one writer and every sum a fixed
order, without atomic operations, so the bits are the same in every run. `sort` puts ids in
order, `runs` sums runs.
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
from sparsetrain.kernels.builder import buffer, extents, kernel
from sparsetrain.kernels.loops import Number

SCATTERERS = 256  # blocks that share the rows of a dense gradient


def scatter_add_kernel(width: int, dtype: str, index_dtype: str, pooled: bool) -> PrimFunc:
    """Zero-fill, then ``out[ids[n]] += values[source[n]]`` in the order of n; skips padding.

    Block k of `SCATTERERS` owns the rows v with ``v % SCATTERERS == k``: it reads all ids, and adds
    those of its rows one after another, all columns at once.
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
    """Let each block see the entries of its rows, in order; yields thread, entry and row."""
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


def row_squares_kernel(width: int, dtype: str) -> PrimFunc:
    """Sum of squares of each row, in float64."""
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
