# SPDX-License-Identifier: Apache-2.0
"""DLRM's dot interaction: every pair of a sample's F + 1 vectors gives one number.

With ``x_0`` the dense vector and ``x_1 .. x_F`` the embeddings of a sample, the result is
``[x_0, x_1.x_0, x_2.x_0, x_2.x_1, x_3.x_0, ...]``: the dense vector, then the strict lower triangle
of the Gram matrix row by row (Naumov et al. 2019, https://arxiv.org/abs/1906.00091, with
``interaction_itself`` off).

One operator with its own kernel each way: through matrix products the (F + 1) x (F + 1) matrices
of a batch would all go through memory. Here they stay in registers and the first-level cache.

What is parallel: samples. What is vectorised: forward the columns of the Gram matrix (the vectors
are transposed into `columns`, so that no dot product needs a sum across lanes), backward the width.
Each tile of rows shares the loads of the other operand; forward it goes over the
columns in blocks of `LANES`, which stay in registers whatever F is, and skips blocks above the
diagonal.
"""

from __future__ import annotations

from typing import Any

from tvm import DataType, relax
from tvm.relax.frontend import nn
from tvm.script import tirx as T
from tvm.script.ir_builder import tirx as build
from tvm.tirx import PrimFunc

from sparsetrain.ad import defvjp
from sparsetrain.models import cuda_interaction
from sparsetrain.relax_op import SCHEDULED, call_kernel, define_op, for_target
from sparsetrain.sparse_tensor.kernels import column_tiles

LANES = 16
MAX_BACKWARD_LANES = 64
VECTOR_REGISTERS, VECTOR_BITS = 32, 512  # of AVX-512
ACCUMULATORS = 16  # vectors of LANES that a register tile holds; with 2 more per step they fit 32


def output_width(features: int, width: int) -> int:
    """Columns of the result for F embeddings of width D: ``D + F (F + 1) / 2``."""
    return width + features * (features + 1) // 2


def _round_up(number: int, to: int) -> int:
    return -(-number // to) * to


def row_tile(vectors: int, lanes: int) -> int:
    """Rows of a register tile of `lanes` columns: as many as fit, with the least padding."""
    most = max(1, min(vectors, ACCUMULATORS * LANES // _round_up(lanes, LANES)))
    return min(range(-(-most // 2), most + 1), key=lambda rows: (_round_up(vectors, rows), -rows))


def forward_kernel(features: int, width: int, dtype: str) -> PrimFunc:
    """Dense (B, D), embeddings (B, F, D) -> (B, D + F (F + 1) / 2)."""
    vectors = features + 1
    tile_rows = row_tile(vectors, LANES)
    rows, columns = _round_up(vectors, tile_rows), _round_up(vectors, LANES)
    tiles, lanes = column_tiles(width)
    out_width = output_width(features, width)

    @T.prim_func(s_tir=True, private=True)
    def interaction(dense: T.handle, embeddings: T.handle, out: T.handle):
        T.func_attr(SCHEDULED)
        B = T.int64()
        Dense = T.match_buffer(dense, (B, width), dtype)
        Embeddings = T.match_buffer(embeddings, (B, features, width), dtype)
        Out = T.match_buffer(out, (B, out_width), dtype)
        for b in T.parallel(B):
            row = T.alloc_buffer((rows, width), dtype, scope="local")
            column = T.alloc_buffer((width, columns), dtype, scope="local")
            for t in T.serial(tiles):
                for d in T.vectorized(lanes):
                    row[0, t * lanes + d] = Dense[b, t * lanes + d]
                    Out[b, t * lanes + d] = Dense[b, t * lanes + d]
            for f in T.serial(features):
                for t in T.serial(tiles):
                    for d in T.vectorized(lanes):
                        row[f + 1, t * lanes + d] = Embeddings[b, f, t * lanes + d]
            for i in T.serial(rows - vectors):
                for d in T.serial(width):
                    row[vectors + i, d] = T.cast(0, dtype)
            for d in T.serial(width):
                for j in T.serial(vectors):
                    column[d, j] = row[j, d]
                for j in T.serial(columns - vectors):
                    column[d, vectors + j] = T.cast(0, dtype)
            for tile in T.serial(rows // tile_rows):
                for c in T.serial((tile * tile_rows + tile_rows + LANES - 2) // LANES):
                    gram = T.alloc_buffer((tile_rows, LANES), dtype, scope="local")
                    for r in T.unroll(tile_rows):
                        for j in T.vectorized(LANES):
                            gram[r, j] = T.cast(0, dtype)
                    for d in T.serial(width):
                        for r in T.unroll(tile_rows):
                            for j in T.vectorized(LANES):
                                gram[r, j] = (
                                    gram[r, j]
                                    + row[tile * tile_rows + r, d] * column[d, c * LANES + j]
                                )
                    for r in T.unroll(tile_rows):
                        i = tile * tile_rows + r
                        if i < vectors:
                            for j in T.serial(T.min(T.max(i - c * LANES, 0), LANES)):
                                Out[b, width + i * (i - 1) // 2 + c * LANES + j] = gram[r, j]

    return interaction


def backward_kernel(features: int, width: int, dtype: str) -> PrimFunc:
    """Cotangent (B, D + F (F + 1) / 2) -> cotangents of dense (B, D) and embeddings (B, F, D).

    With G the symmetric matrix of the pairs' cotangents and zeros on its diagonal, the vectors'
    cotangents are the rows of ``G X``; the dense one gets the first D columns on top.
    """
    vectors = features + 1
    tiles, lanes = column_tiles(width, MAX_BACKWARD_LANES)
    tile_rows = row_tile(vectors, lanes)
    rows = _round_up(vectors, tile_rows)
    out_width = output_width(features, width)

    @T.prim_func(s_tir=True, private=True)
    def interaction_backward(
        dense: T.handle,
        embeddings: T.handle,
        cotangent: T.handle,
        dense_cotangent: T.handle,
        embeddings_cotangent: T.handle,
    ):
        T.func_attr(SCHEDULED)
        B = T.int64()
        Dense = T.match_buffer(dense, (B, width), dtype)
        Embeddings = T.match_buffer(embeddings, (B, features, width), dtype)
        Cotangent = T.match_buffer(cotangent, (B, out_width), dtype)
        DenseCotangent = T.match_buffer(dense_cotangent, (B, width), dtype)
        EmbeddingsCotangent = T.match_buffer(embeddings_cotangent, (B, features, width), dtype)
        for b in T.parallel(B):
            row = T.alloc_buffer((vectors, width), dtype, scope="local")
            pair = T.alloc_buffer((rows, vectors), dtype, scope="local")
            for t in T.serial(tiles):
                for d in T.vectorized(lanes):
                    row[0, t * lanes + d] = Dense[b, t * lanes + d]
            for f in T.serial(features):
                for t in T.serial(tiles):
                    for d in T.vectorized(lanes):
                        row[f + 1, t * lanes + d] = Embeddings[b, f, t * lanes + d]
            for i in T.serial(vectors):
                for j in T.serial(i):
                    value = Cotangent[b, width + i * (i - 1) // 2 + j]
                    pair[i, j] = value
                    pair[j, i] = value
            for i in T.serial(rows - vectors):
                for j in T.serial(vectors):
                    pair[vectors + i, j] = T.cast(0, dtype)
            for i in T.serial(vectors):
                pair[i, i] = T.cast(0, dtype)
            for tile in T.serial(rows // tile_rows):
                for t in T.serial(tiles):
                    total = T.alloc_buffer((tile_rows, lanes), dtype, scope="local")
                    for r in T.unroll(tile_rows):
                        for d in T.vectorized(lanes):
                            total[r, d] = T.cast(0, dtype)
                    for j in T.serial(vectors):
                        for r in T.unroll(tile_rows):
                            for d in T.vectorized(lanes):
                                total[r, d] = (
                                    total[r, d]
                                    + pair[tile * tile_rows + r, j] * row[j, t * lanes + d]
                                )
                    for r in T.unroll(tile_rows):
                        if tile * tile_rows + r == 0:
                            for d in T.vectorized(lanes):
                                DenseCotangent[b, t * lanes + d] = (
                                    total[r, d] + Cotangent[b, t * lanes + d]
                                )
                        elif tile * tile_rows + r < vectors:
                            for d in T.vectorized(lanes):
                                EmbeddingsCotangent[b, tile * tile_rows + r - 1, t * lanes + d] = (
                                    total[r, d]
                                )

    return interaction_backward


def fits_registers(features: int, width: int, dtype: str) -> bool:
    """Whether the rows are one vector each and all of them fit the registers, three to spare.

    Rows of several vectors would have every pair's cotangent read again for each: at width 128 that
    took twice the time of `backward_kernel`.
    """
    return features + 1 <= VECTOR_REGISTERS - 3 and width == _vector_lanes(dtype)


def _vector_lanes(dtype: str) -> int:
    return VECTOR_BITS // DataType(dtype).bits


def register_backward_kernel(features: int, width: int, dtype: str) -> PrimFunc:
    """What `backward_kernel` computes, to the bit, where `fits_registers`.

    All rows of ``G X`` are summed at once, so G need not be written out: a pair's cotangent is read
    once and serves both of its rows. The order of the terms of each sum is that of the columns of
    G, as there.
    """
    out_width = output_width(features, width)

    @T.prim_func(s_tir=True, private=True)
    def interaction_backward(
        dense: T.handle,
        embeddings: T.handle,
        cotangent: T.handle,
        dense_cotangent: T.handle,
        embeddings_cotangent: T.handle,
    ):
        T.func_attr(SCHEDULED)
        B = T.int64()
        Dense = T.match_buffer(dense, (B, width), dtype)
        Embeddings = T.match_buffer(embeddings, (B, features, width), dtype)
        Cotangent = T.match_buffer(cotangent, (B, out_width), dtype)
        DenseCotangent = T.match_buffer(dense_cotangent, (B, width), dtype)
        EmbeddingsCotangent = T.match_buffer(embeddings_cotangent, (B, features, width), dtype)
        for b in T.parallel(B):
            total = T.alloc_buffer((features + 1, width), dtype, scope="local")
            for i in T.unroll(features + 1):
                for d in T.vectorized(width):
                    total[i, d] = T.cast(0, dtype)
            _add_pairs(total, (Dense, Embeddings, Cotangent), b)
            for d in T.vectorized(width):
                DenseCotangent[b, d] = total[0, d] + Cotangent[b, d]
            for f in T.unroll(features):
                for d in T.vectorized(width):
                    EmbeddingsCotangent[b, f, d] = total[f + 1, d]

    return interaction_backward


def _add_pairs(total: Any, arrays: tuple[Any, Any, Any], b: Any) -> None:
    """For each pair, add its cotangent times either vector to the other's sum."""
    dense, embeddings, cotangent = arrays
    vectors, width = map(int, total.shape)

    def add(to: int, other: int, factor: Any) -> None:
        with build.vectorized(0, width) as d:
            x = embeddings[b, other - 1, d] if other else dense[b, d]
            build.buffer_store(total, total[to, d] + factor * x, [to, d])

    for i in range(vectors):
        for j in range(i):
            factor = build.Bind(cotangent[b, width + i * (i - 1) // 2 + j])
            add(i, j, factor)
            add(j, i, factor)


def _sizes(call: Any) -> tuple[int, int, str]:
    embeddings = call.args[1].ty
    return int(embeddings.shape[1]), int(embeddings.shape[2]), str(embeddings.dtype)


def _forward_type(call: Any) -> relax.Type:
    features, width, dtype = _sizes(call)
    return relax.TensorType((call.args[0].ty.shape[0], output_width(features, width)), dtype)


def _forward(builder: relax.BlockBuilder, call: Any) -> relax.Expr:
    make = for_target(llvm=forward_kernel, cuda=cuda_interaction.forward_kernel)
    kernel = make(*_sizes(call))
    return call_kernel(builder, kernel, "interaction", list(call.args), call.ty)


def _backward(builder: relax.BlockBuilder, call: Any) -> relax.Expr:
    sizes = _sizes(call)
    on_cpu = register_backward_kernel if fits_registers(*sizes) else backward_kernel
    make = for_target(llvm=on_cpu, cuda=cuda_interaction.backward_kernel)
    outputs = [call.args[0].ty, call.args[1].ty]
    return call_kernel(builder, make(*sizes), "interaction_backward", list(call.args), outputs)


interaction = define_op("interaction", ("dense", "embeddings"), _forward_type, _forward)
interaction_backward = define_op(
    "interaction_backward",
    ("dense", "embeddings", "cotangent"),
    lambda call: relax.TupleType([call.args[0].ty, call.args[1].ty]),
    _backward,
)


def _vjp(output: relax.Var, call: Any, cotangent: relax.Expr, builder: Any) -> list:
    """Backward: see `backward_kernel`."""
    both = builder.emit(interaction_backward(*call.args, cotangent))
    return [relax.TupleGetItem(both, 0), relax.TupleGetItem(both, 1)]


defvjp("relax.sparsetrain.interaction", _vjp)


def dot_interaction(dense: nn.Tensor, embeddings: nn.Tensor) -> nn.Tensor:
    """The operator in `nn` models: (B, D), (B, F, D) -> (B, D + F (F + 1) / 2)."""
    return nn.op.wrap_nested(interaction(dense._expr, embeddings._expr), "interaction")
