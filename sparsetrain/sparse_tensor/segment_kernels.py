# SPDX-License-Identifier: Apache-2.0
"""CPU kernels for row-sparse tensors: segment sums and scatter; `plan_kernel` has the sort.

Preconditions (checked by `RowSparse.validate`, not here): indices are in [0, num_rows], sources in
[0, M). Every output row has one writer and every sum a fixed order, so the bits do not depend on
the number of threads. Row numbers become int64 before they are multiplied by a width.

Output rows run in parallel (`segment_sum`, `row_squares`, the zero fill of `scatter_add`). The
scatter is serial. The columns of a row are vectorized.
"""

from __future__ import annotations

from functools import cache

from tvm.script import tirx as T
from tvm.tirx import PrimFunc

from sparsetrain.kernels import builder
from sparsetrain.kernels.builder import SCHEDULED
from sparsetrain.kernels.loops import column_tiles


def segment_sum_kernel(width: int, dtype: str, pooled: bool) -> PrimFunc:
    """Sum the value rows of each run, first to last; one writer for each output row."""
    tiles, lanes = column_tiles(width)

    @builder.prim_func(s_tir=True)
    def segment_sum(
        order: T.handle, offsets: T.handle, source: T.handle, values: T.handle, out: T.handle
    ):
        T.func_attr(SCHEDULED)
        N, M, S, U = T.int64(), T.int64(), T.int64(), T.int64()
        Order = T.match_buffer(order, (N,), "int32")
        Offsets = T.match_buffer(offsets, (U + 1,), "int32")
        Source = T.match_buffer(source, (S,), "int32")
        Values = T.match_buffer(values, (M, width), dtype)
        Out = T.match_buffer(out, (U, width), dtype)
        for u in T.parallel(U):
            for t in T.serial(tiles):
                total = T.alloc_buffer((lanes,), dtype, scope="local")
                for d in T.vectorized(lanes):
                    total[d] = T.cast(0, dtype)
                for k in T.serial(Offsets[u + 1] - Offsets[u]):
                    entry = Order[Offsets[u] + k]
                    row = T.int64(Source[entry] if pooled else entry)
                    for d in T.vectorized(lanes):
                        total[d] = total[d] + Values[row, t * lanes + d]
                for d in T.vectorized(lanes):
                    Out[u, t * lanes + d] = total[d]

    return segment_sum


def row_squares_kernel(width: int, dtype: str) -> PrimFunc:
    """Compute the sum of squares of each row, in float64."""

    @builder.prim_func(s_tir=True)
    def row_squares(values: T.handle, out: T.handle):
        T.func_attr(SCHEDULED)
        U = T.int64()
        Values = T.match_buffer(values, (U, width), dtype)
        Out = T.match_buffer(out, (U,), "float64")
        for u in T.parallel(U):
            Out[u] = T.float64(0)
            for d in T.serial(width):
                Out[u] = Out[u] + T.float64(Values[u, d]) * T.float64(Values[u, d])

    return row_squares


@cache
def scatter_add_kernel(width: int, dtype: str, index_dtype: str, pooled: bool) -> PrimFunc:
    """Zero-fill, then add ``out[ids[n]] += values[source[n]]`` in order; skip invalid ids."""
    tiles, lanes = column_tiles(width)

    @builder.prim_func(s_tir=True, private=True)
    def scatter_add(ids: T.handle, values: T.handle, source: T.handle, out: T.handle):
        T.func_attr(SCHEDULED)
        N, M, S, V = T.int64(), T.int64(), T.int64(), T.int64()
        Ids = T.match_buffer(ids, (N,), index_dtype)
        Values = T.match_buffer(values, (M, width), dtype)
        Source = T.match_buffer(source, (S,), "int32" if pooled else index_dtype)
        Out = T.match_buffer(out, (V, width), dtype)
        for v in T.parallel(V):
            for t in T.serial(tiles):
                for d in T.vectorized(lanes):
                    Out[v, t * lanes + d] = T.cast(0, dtype)
        for n in T.serial(N):
            if T.int64(Ids[n]) >= 0 and T.int64(Ids[n]) < V:
                row = T.int64(Source[n]) if pooled else n
                for t in T.serial(tiles):
                    for d in T.vectorized(lanes):
                        Out[T.int64(Ids[n]), t * lanes + d] = (
                            Out[T.int64(Ids[n]), t * lanes + d] + Values[row, t * lanes + d]
                        )

    return scatter_add
