# SPDX-License-Identifier: Apache-2.0
"""The CUDA kernels of embedding lookups; `kernels` holds the CPU's, with the same arguments.

Preconditions, meanings and the order of every sum are those of the CPU's kernels, so results have
the same bits but for fused multiplications. What is parallel: vectors of four columns of all rows,
in one long row of threads, so that a width of 16 fills a warp with eight rows as a width of 128
fills it with one. Loads and stores are 16 bytes where the width allows it, side by side.
"""

from __future__ import annotations

from tvm.script import tirx as T
from tvm.tirx import PrimFunc, const

from sparsetrain.relax_op import SCHEDULED, THREADS, vector_lanes


def lookup_kernel(width: int, dtype: str, id_dtype: str) -> PrimFunc:
    """``out[n] = table[ids[n]]``; an id outside the table reads as NaN."""
    lanes = vector_lanes(width, dtype)
    vectors = width // lanes
    nan = const(float("nan"), dtype)

    @T.prim_func(s_tir=True, private=True)
    def lookup(table: T.handle, ids: T.handle, out: T.handle):
        T.func_attr(SCHEDULED)
        V, N = T.int64(), T.int64()
        Table = T.match_buffer(table, (V, width), dtype)
        Ids = T.match_buffer(ids, (N,), id_dtype)
        Out = T.match_buffer(out, (N, width), dtype)
        for block in T.thread_binding(
            T.max(T.ceildiv(N * vectors, T.int64(THREADS)), T.int64(1)), thread="blockIdx.x"
        ):
            for thread in T.thread_binding(THREADS, thread="threadIdx.x"):
                if block * THREADS + thread < N * vectors:
                    n: T.let = (block * THREADS + thread) // vectors
                    d: T.let = (block * THREADS + thread) % vectors * lanes
                    row: T.let = T.int64(Ids[n])
                    if row >= T.int64(0) and row < V:
                        for lane in T.vectorized(lanes):
                            Out[n, d + lane] = Table[row, d + lane]
                    else:
                        for lane in T.vectorized(lanes):
                            Out[n, d + lane] = nan

    return lookup


def bag_kernel(
    width: int, dtype: str, id_dtype: str, features: int, mean: bool, weighted: bool
) -> PrimFunc:
    """``out[b, f] = sum of weights[n] table[ids[n]]`` over bag ``f B + b``; an empty bag is 0."""
    lanes = vector_lanes(width, dtype)
    vectors = width // lanes
    nan = const(float("nan"), dtype)

    @T.prim_func(s_tir=True, private=True)
    def embedding_bag(
        table: T.handle, ids: T.handle, offsets: T.handle, weights: T.handle, out: T.handle
    ):
        T.func_attr(SCHEDULED)
        V, N, W, B = T.int64(), T.int64(), T.int64(), T.int64()
        Table = T.match_buffer(table, (V, width), dtype)
        Ids = T.match_buffer(ids, (N,), id_dtype)
        Offsets = T.match_buffer(offsets, (B * features + 1,), "int64")
        Weights = T.match_buffer(weights, (W,), dtype if weighted else "int64")
        Out = T.match_buffer(out, (B, features, width), dtype)
        for block in T.thread_binding(
            T.max(T.ceildiv(B * features * vectors, T.int64(THREADS)), T.int64(1)),
            thread="blockIdx.x",
        ):
            for thread in T.thread_binding(THREADS, thread="threadIdx.x"):
                if block * THREADS + thread < B * features * vectors:
                    k: T.let = (block * THREADS + thread) // vectors
                    d: T.let = (block * THREADS + thread) % vectors * lanes
                    first: T.let = Offsets[k]
                    count: T.let = Offsets[k + 1] - first
                    total = T.alloc_buffer((lanes,), dtype, scope="local")
                    for lane in T.vectorized(lanes):
                        total[lane] = T.cast(0, dtype)
                    for n in T.serial(count):
                        row: T.let = T.int64(Ids[first + n])
                        if row < T.int64(0) or row >= V:
                            for lane in T.vectorized(lanes):
                                total[lane] = nan
                        else:
                            for lane in T.vectorized(lanes):
                                if weighted:
                                    total[lane] = (
                                        total[lane] + Table[row, d + lane] * Weights[first + n]
                                    )
                                else:
                                    total[lane] = total[lane] + Table[row, d + lane]
                    divisor: T.let = (
                        T.cast(T.max(count, T.int64(1)), dtype) if mean else T.cast(1, dtype)
                    )
                    for lane in T.vectorized(lanes):
                        Out[k % B, k // B, d + lane] = total[lane] / divisor

    return embedding_bag


def bag_source_kernel(features: int, id_dtype: str) -> PrimFunc:
    """For each id, the row of the (B * F, D) cotangent that its bag's result has."""

    @T.prim_func(s_tir=True, private=True)
    def bag_source(offsets: T.handle, ids: T.handle, out: T.handle):
        T.func_attr(SCHEDULED)
        N, K = T.int64(), T.int64()
        Offsets = T.match_buffer(offsets, (K,), "int64")
        T.match_buffer(ids, (N,), id_dtype)  # only its length is read
        Out = T.match_buffer(out, (N,), "int32")
        for block in T.thread_binding(
            T.max(T.ceildiv(K - 1, T.int64(THREADS)), T.int64(1)), thread="blockIdx.x"
        ):
            for thread in T.thread_binding(THREADS, thread="threadIdx.x"):
                k: T.let = block * THREADS + thread
                batch: T.let = (K - 1) // features
                if k < K - 1:
                    for n in T.serial(Offsets[k + 1] - Offsets[k]):
                        Out[Offsets[k] + n] = T.int32(k % batch * features + k // batch)

    return bag_source


def bag_mean_cotangent_kernel(width: int, dtype: str, features: int) -> PrimFunc:
    """The cotangent (B, F, D) of a mean, divided by the length of each bag."""
    lanes = vector_lanes(width, dtype)
    vectors = width // lanes

    @T.prim_func(s_tir=True, private=True)
    def bag_mean_cotangent(cotangent: T.handle, offsets: T.handle, out: T.handle):
        T.func_attr(SCHEDULED)
        B = T.int64()
        Cotangent = T.match_buffer(cotangent, (B, features, width), dtype)
        Offsets = T.match_buffer(offsets, (B * features + 1,), "int64")
        Out = T.match_buffer(out, (B, features, width), dtype)
        for block in T.thread_binding(
            T.max(T.ceildiv(B * features * vectors, T.int64(THREADS)), T.int64(1)),
            thread="blockIdx.x",
        ):
            for thread in T.thread_binding(THREADS, thread="threadIdx.x"):
                if block * THREADS + thread < B * features * vectors:
                    row: T.let = (block * THREADS + thread) // vectors
                    d: T.let = (block * THREADS + thread) % vectors * lanes
                    k: T.let = row % features * B + row // features
                    count: T.let = T.max(Offsets[k + 1] - Offsets[k], T.int64(1))
                    for lane in T.vectorized(lanes):
                        Out[row // features, row % features, d + lane] = Cotangent[
                            row // features, row % features, d + lane
                        ] / T.cast(count, dtype)

    return bag_mean_cotangent


def weighted_values_kernel(width: int, dtype: str) -> PrimFunc:
    """For each id, its weight times the cotangent of its bag: (N, D)."""
    lanes = vector_lanes(width, dtype)
    vectors = width // lanes

    @T.prim_func(s_tir=True, private=True)
    def weighted_values(cotangent: T.handle, source: T.handle, weights: T.handle, out: T.handle):
        T.func_attr(SCHEDULED)
        N, M = T.int64(), T.int64()
        Cotangent = T.match_buffer(cotangent, (M, width), dtype)
        Source = T.match_buffer(source, (N,), "int32")
        Weights = T.match_buffer(weights, (N,), dtype)
        Out = T.match_buffer(out, (N, width), dtype)
        for block in T.thread_binding(
            T.max(T.ceildiv(N * vectors, T.int64(THREADS)), T.int64(1)), thread="blockIdx.x"
        ):
            for thread in T.thread_binding(THREADS, thread="threadIdx.x"):
                if block * THREADS + thread < N * vectors:
                    n: T.let = (block * THREADS + thread) // vectors
                    d: T.let = (block * THREADS + thread) % vectors * lanes
                    for lane in T.vectorized(lanes):
                        Out[n, d + lane] = Weights[n] * Cotangent[T.int64(Source[n]), d + lane]

    return weighted_values


def weight_cotangent_kernel(width: int, dtype: str, id_dtype: str) -> PrimFunc:
    """For each id, the dot product of its table row and the cotangent of its bag: (N,)."""

    @T.prim_func(s_tir=True, private=True)
    def weight_cotangent(
        table: T.handle, ids: T.handle, cotangent: T.handle, source: T.handle, out: T.handle
    ):
        T.func_attr(SCHEDULED)
        V, N, M = T.int64(), T.int64(), T.int64()
        Table = T.match_buffer(table, (V, width), dtype)
        Ids = T.match_buffer(ids, (N,), id_dtype)
        Cotangent = T.match_buffer(cotangent, (M, width), dtype)
        Source = T.match_buffer(source, (N,), "int32")
        Out = T.match_buffer(out, (N,), dtype)
        for block in T.thread_binding(
            T.max(T.ceildiv(N, T.int64(THREADS)), T.int64(1)), thread="blockIdx.x"
        ):
            for thread in T.thread_binding(THREADS, thread="threadIdx.x"):
                n: T.let = block * THREADS + thread
                if n < N:
                    row: T.let = T.max(T.min(T.int64(Ids[n]), V - 1), T.int64(0))
                    total = T.alloc_buffer((1,), dtype, scope="local")
                    total[0] = T.cast(0, dtype)
                    for d in T.serial(width):
                        total[0] = total[0] + Table[row, d] * Cotangent[T.int64(Source[n]), d]
                    Out[n] = total[0]

    return weight_cotangent
