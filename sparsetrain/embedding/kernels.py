# SPDX-License-Identifier: Apache-2.0
"""The CPU kernels of embedding lookups, one id or a bag of ids per output row.

Preconditions (checked where data enters): ids lie in [0, V), offsets rise from 0 to N. Ids that a
model computes cannot be checked there: one outside the table reads as NaN, never as other memory,
and its gradient is refused when rows are coalesced. Row numbers become int64 before they are
multiplied by a width: V * D may pass 2**31.

A table may be stored in half precision or in rows of int8: an element is widened when it is read,
in registers, and all else is float32.

What is parallel: output rows, each with one writer and its ids summed first to last, so the bits
do not depend on the number of threads. What is vectorised: the columns of a row.

A bag's number is feature-major, ``bag = f * B + b``, because each feature brings its own ids and
offsets; its result stands at ``[b, f]``, where the interaction wants it.
"""

from __future__ import annotations

from functools import cache

from tvm.script import tirx as T
from tvm.tirx import PrimFunc, const

from sparsetrain.embedding.lookup_kernel import lookup_kernel as lookup_kernel
from sparsetrain.kernels import builder
from sparsetrain.kernels.builder import SCHEDULED
from sparsetrain.kernels.table_formats import computed_in, read_element, stored_width
from sparsetrain.sparse_tensor.kernels import column_tiles

# TVMScript reads every name below as part of the kernel, so the variants are chosen by flags
# that are Python constants when the script is parsed: no branch is left in the compiled code.
# Each variant is parsed once: that takes tens of milliseconds, and programs share variants.


@cache
def bag_kernel(
    width: int, dtype: str, id_dtype: str, features: int, mean: bool, weighted: bool
) -> PrimFunc:
    """``out[b, f] = sum of weights[n] table[ids[n]]`` over bag ``f B + b``; an empty bag is 0."""
    tiles, lanes = column_tiles(width)
    columns, out_dtype = stored_width(width, dtype), computed_in(dtype)
    nan = const(float("nan"), out_dtype)

    @builder.prim_func(s_tir=True, private=True)
    def embedding_bag(
        table: T.handle, ids: T.handle, offsets: T.handle, weights: T.handle, out: T.handle
    ):
        T.func_attr(SCHEDULED)
        V, N, W, B = T.int64(), T.int64(), T.int64(), T.int64()
        Table = T.match_buffer(table, (V, columns), dtype)
        Ids = T.match_buffer(ids, (N,), id_dtype)
        Offsets = T.match_buffer(offsets, (B * features + 1,), "int64")
        Weights = T.match_buffer(weights, (W,), out_dtype if weighted else "int64")
        Out = T.match_buffer(out, (B, features, width), out_dtype)
        for k in T.parallel(B * features):
            first = Offsets[k]
            count = Offsets[k + 1] - first
            for t in T.serial(tiles):
                total = T.alloc_buffer((lanes,), out_dtype, scope="local")
                for d in T.vectorized(lanes):
                    total[d] = T.cast(0, out_dtype)
                for n in T.serial(count):
                    row = T.int64(Ids[first + n])
                    if row < T.int64(0) or row >= V:
                        for d in T.vectorized(lanes):
                            total[d] = nan
                    else:
                        for d in T.vectorized(lanes):
                            value: T.let = read_element(Table, row, t * lanes + d)
                            if weighted:
                                total[d] = total[d] + value * Weights[first + n]
                            else:
                                total[d] = total[d] + value
                divisor = T.cast(T.max(count, T.int64(1)) if mean else 1, out_dtype)
                for d in T.vectorized(lanes):
                    Out[k % B, k // B, t * lanes + d] = total[d] / divisor

    return embedding_bag


@cache
def bag_source_kernel(features: int, id_dtype: str) -> PrimFunc:
    """For each id, the row of the (B * F, D) cotangent that its bag's result has."""

    @builder.prim_func(s_tir=True, private=True)
    def bag_source(offsets: T.handle, ids: T.handle, out: T.handle):
        T.func_attr(SCHEDULED)
        N, K = T.int64(), T.int64()
        Offsets = T.match_buffer(offsets, (K,), "int64")
        T.match_buffer(ids, (N,), id_dtype)  # only its length is read
        Out = T.match_buffer(out, (N,), "int32")
        batch = (K - 1) // features
        for k in T.parallel(K - 1):
            for n in T.serial(Offsets[k + 1] - Offsets[k]):
                Out[Offsets[k] + n] = T.int32(k % batch * features + k // batch)

    return bag_source


@cache
def bag_mean_cotangent_kernel(width: int, dtype: str, features: int) -> PrimFunc:
    """The cotangent (B, F, D) of a mean, divided by the length of each bag."""
    tiles, lanes = column_tiles(width)

    @builder.prim_func(s_tir=True, private=True)
    def bag_mean_cotangent(cotangent: T.handle, offsets: T.handle, out: T.handle):
        T.func_attr(SCHEDULED)
        B = T.int64()
        Cotangent = T.match_buffer(cotangent, (B, features, width), dtype)
        Offsets = T.match_buffer(offsets, (B * features + 1,), "int64")
        Out = T.match_buffer(out, (B, features, width), dtype)
        for k in T.parallel(B * features):
            count = T.max(Offsets[k + 1] - Offsets[k], T.int64(1))
            for t in T.serial(tiles):
                for d in T.vectorized(lanes):
                    Out[k % B, k // B, t * lanes + d] = Cotangent[
                        k % B, k // B, t * lanes + d
                    ] / T.cast(count, dtype)

    return bag_mean_cotangent


@cache
def weighted_values_kernel(width: int, dtype: str) -> PrimFunc:
    """For each id, its weight times the cotangent of its bag: (N, D)."""
    tiles, lanes = column_tiles(width)

    @builder.prim_func(s_tir=True, private=True)
    def weighted_values(cotangent: T.handle, source: T.handle, weights: T.handle, out: T.handle):
        T.func_attr(SCHEDULED)
        N, M = T.int64(), T.int64()
        Cotangent = T.match_buffer(cotangent, (M, width), dtype)
        Source = T.match_buffer(source, (N,), "int32")
        Weights = T.match_buffer(weights, (N,), dtype)
        Out = T.match_buffer(out, (N, width), dtype)
        for n in T.parallel(N):
            for t in T.serial(tiles):
                for d in T.vectorized(lanes):
                    Out[n, t * lanes + d] = (
                        Weights[n] * Cotangent[T.int64(Source[n]), t * lanes + d]
                    )

    return weighted_values


@cache
def weight_cotangent_kernel(width: int, dtype: str, id_dtype: str) -> PrimFunc:
    """For each id, the dot product of its table row and the cotangent of its bag: (N,)."""
    out_dtype = computed_in(dtype)

    @builder.prim_func(s_tir=True, private=True)
    def weight_cotangent(
        table: T.handle, ids: T.handle, cotangent: T.handle, source: T.handle, out: T.handle
    ):
        T.func_attr(SCHEDULED)
        V, N, M = T.int64(), T.int64(), T.int64()
        Table = T.match_buffer(table, (V, width), dtype)
        Ids = T.match_buffer(ids, (N,), id_dtype)
        Cotangent = T.match_buffer(cotangent, (M, width), out_dtype)
        Source = T.match_buffer(source, (N,), "int32")
        Out = T.match_buffer(out, (N,), out_dtype)
        for n in T.parallel(N):
            row = T.max(T.min(T.int64(Ids[n]), V - 1), T.int64(0))
            Out[n] = T.cast(0, out_dtype)
            for d in T.serial(width):
                value: T.let = read_element(Table, row, d)
                Out[n] = Out[n] + value * Cotangent[T.int64(Source[n]), d]

    return weight_cotangent
