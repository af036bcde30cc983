# SPDX-License-Identifier: Apache-2.0
"""CUDA kernels of row-sparse tensors: scatter, squares of rows.

Same preconditions and meanings as `kernels`. Every result has one writer and every sum a fixed
order, without atomic operations, so the bits are the same in every run. `cuda_sort` puts ids in
order, `cuda_runs` sums runs.
"""

from __future__ import annotations

from tvm.script import tirx as T
from tvm.tirx import PrimFunc

from sparsetrain.relax_op import SCHEDULED, THREADS

SCATTERERS = 256  # blocks that share the rows of a dense gradient


def scatter_add_kernel(width: int, dtype: str, index_dtype: str, pooled: bool) -> PrimFunc:
    """Zero-fill, then ``out[ids[n]] += values[source[n]]`` in the order of n; skips padding.

    Block k of `SCATTERERS` owns the rows v with ``v % SCATTERERS == k``: it reads all ids, and adds
    those of its rows one after another, all columns at once.
    """

    @T.prim_func(s_tir=True, private=True)
    def scatter_add(ids: T.handle, values: T.handle, source: T.handle, out: T.handle):
        T.func_attr(SCHEDULED)
        N, M, S, V = T.int64(), T.int64(), T.int64(), T.int64()
        Ids = T.match_buffer(ids, (N,), index_dtype)
        Values = T.match_buffer(values, (M, width), dtype)
        Source = T.match_buffer(source, (S,), "int32" if pooled else index_dtype)
        Out = T.match_buffer(out, (V, width), dtype)
        for block in T.thread_binding(
            T.max(T.ceildiv(V * width, T.int64(THREADS)), T.int64(1)), thread="blockIdx.x"
        ):
            for thread in T.thread_binding(THREADS, thread="threadIdx.x"):
                e: T.let = block * THREADS + thread
                if e < V * width:
                    Out[e // width, e % width] = T.cast(0, dtype)
        for block in T.thread_binding(SCATTERERS, thread="blockIdx.x"):
            for thread in T.thread_binding(THREADS, thread="threadIdx.x"):
                tile = T.alloc_buffer((THREADS,), "int64", scope="shared")
                for turn in T.serial(T.ceildiv(N, T.int64(THREADS))):
                    tile[thread] = V
                    if turn * THREADS + thread < N:
                        tile[thread] = T.int64(Ids[turn * THREADS + thread])
                    T.tvm_storage_sync("shared")
                    for k in T.serial(THREADS):
                        id: T.let = tile[k]
                        if id >= T.int64(0) and id < V and id % SCATTERERS == T.int64(block):
                            n: T.let = turn * THREADS + k
                            row: T.let = T.int64(Source[n]) if pooled else n
                            for c in T.serial((width + THREADS - 1) // THREADS):
                                d: T.let = c * THREADS + thread
                                if d < width:
                                    Out[id, d] = Out[id, d] + Values[row, d]
                    T.tvm_storage_sync("shared")

    return scatter_add


def row_squares_kernel(width: int, dtype: str) -> PrimFunc:
    """Sum of squares of each row, in float64."""

    @T.prim_func(s_tir=True)
    def row_squares(values: T.handle, out: T.handle):
        T.func_attr(SCHEDULED)
        U = T.int64()
        Values = T.match_buffer(values, (U, width), dtype)
        Out = T.match_buffer(out, (U,), "float64")
        for block in T.thread_binding(
            T.max(T.ceildiv(U, T.int64(THREADS)), T.int64(1)), thread="blockIdx.x"
        ):
            for thread in T.thread_binding(THREADS, thread="threadIdx.x"):
                total = T.alloc_buffer((1,), "float64", scope="local")
                u: T.let = block * THREADS + thread
                if u < U:
                    total[0] = T.float64(0)
                    for d in T.serial(width):
                        total[0] = total[0] + T.float64(Values[u, d]) * T.float64(Values[u, d])
                    Out[u] = total[0]

    return row_squares
