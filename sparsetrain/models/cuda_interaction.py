# SPDX-License-Identifier: Apache-2.0
"""The CUDA kernels of the dot interaction; `interaction` says what they compute.

A block takes a few samples. Their vectors come through shared memory, a stretch of columns at a
time. Forward, a thread owns a square of `SIDE` x `SIDE` pairs in registers, so that one value read
serves `SIDE` products; the pairs leave through shared memory, because a sample's results lie side
by side. Backward, a thread owns `SIDE` rows and one vector of columns. Sums run first to last.

Cost: what is read and written once, 1 GB for a batch of 65,536 at F = 26 and D = 128.
"""

from __future__ import annotations

from typing import NamedTuple

from tvm.script import tirx as T
from tvm.tirx import PrimFunc

from sparsetrain.relax_op import SCHEDULED, THREADS, vector_lanes

SIDE = 4
SHARED = 46 * 1024  # bytes; a block may have 48 KiB without asking
MOST_SAMPLES = 32


class Blocking(NamedTuple):
    """How a block is cut: its samples, and the columns it holds at a time."""

    samples: int
    columns: int
    staged: bool  # whether the (F + 1)^2 matrix, or its triangle, fits into shared memory too


def _divisors(width: int) -> list[int]:
    return [d for d in range(width, 0, -1) if width % d == 0]


def forward_blocking(vectors: int, width: int, itemsize: int) -> Blocking:
    """As many samples as there are threads for, as many columns as fit."""
    tiles = -(-vectors // SIDE)
    pairs = vectors * (vectors - 1) // 2
    staged = pairs * itemsize <= SHARED // 2
    samples = max(1, min(MOST_SAMPLES, THREADS // (tiles * (tiles + 1) // 2)))
    while samples > 1 and samples * (pairs + vectors * 17) * itemsize > SHARED:
        samples -= 1
    left = SHARED - samples * pairs * itemsize * staged
    columns = next(c for c in _divisors(width) if samples * vectors * (c | 1) * itemsize <= left)
    return Blocking(samples, columns, staged)


def backward_blocking(vectors: int, width: int, itemsize: int) -> Blocking:
    """Likewise; columns are whole vectors."""
    lanes = vector_lanes(width, {4: "float32", 8: "float64"}[itemsize])
    staged = vectors * vectors * itemsize <= SHARED * 3 // 4
    matrix = vectors * vectors * staged
    columns = next(c for c in _divisors(width) if c <= 32 and c % lanes == 0)
    samples = max(1, min(MOST_SAMPLES, THREADS // (-(-vectors // SIDE) * columns // lanes)))
    while samples > 1 and samples * (matrix + vectors * columns) * itemsize > SHARED:
        samples -= 1
    return Blocking(samples, columns, staged)


def forward_kernel(features: int, width: int, dtype: str) -> PrimFunc:
    """Dense (B, D), embeddings (B, F, D) -> (B, D + F (F + 1) / 2)."""
    vectors = features + 1
    tiles = -(-vectors // SIDE)
    squares = tiles * (tiles + 1) // 2
    pairs = features * vectors // 2
    samples, columns, staged = forward_blocking(vectors, width, _itemsize(dtype))
    lanes = vector_lanes(columns, dtype)
    pitch = columns | 1
    loads = samples * vectors * columns // lanes
    rounds = -(-samples * squares // THREADS)
    out_width = width + pairs

    @T.prim_func(s_tir=True, private=True)
    def interaction(dense: T.handle, embeddings: T.handle, out: T.handle):
        T.func_attr(SCHEDULED)
        B = T.int64()
        Dense = T.match_buffer(dense, (B, width), dtype)
        Embeddings = T.match_buffer(embeddings, (B, features, width), dtype)
        Out = T.match_buffer(out, (B, out_width), dtype)
        for block in T.thread_binding(
            T.max(T.ceildiv(B, T.int64(samples)), T.int64(1)), thread="blockIdx.x"
        ):
            for thread in T.thread_binding(THREADS, thread="threadIdx.x"):
                # An odd pitch spreads rows over the banks. One axis: TVM would close a gap it sees.
                rows = T.alloc_buffer((samples * vectors * pitch,), dtype, scope="shared")
                stage = T.alloc_buffer((samples, pairs if staged else 1), dtype, scope="shared")
                stage[0, 0] = T.cast(0, dtype)  # TVM refuses an array that nobody touches
                loaded = T.alloc_buffer((lanes,), dtype, scope="local")
                for turn in T.serial(rounds):
                    item: T.let = turn * THREADS + thread
                    sample: T.let = item // squares
                    square: T.let = item % squares
                    gram = T.alloc_buffer((SIDE, SIDE), dtype, scope="local")
                    left = T.alloc_buffer((SIDE,), dtype, scope="local")
                    right = T.alloc_buffer((SIDE,), dtype, scope="local")
                    upper = T.alloc_buffer((1,), "int32", scope="local")
                    upper[0] = 0
                    for t in T.unroll(tiles - 1):
                        if square >= (t + 1) * (t + 2) // 2:
                            upper[0] = t + 1
                    lower: T.let = square - upper[0] * (upper[0] + 1) // 2
                    for r in T.unroll(SIDE):
                        for c in T.unroll(SIDE):
                            gram[r, c] = T.cast(0, dtype)
                    for stretch in T.serial(width // columns):
                        T.tvm_storage_sync("shared")
                        for step in T.serial(T.ceildiv(loads, THREADS)):
                            load: T.let = step * THREADS + thread
                            if load < loads:
                                s: T.let = load // (vectors * columns // lanes)
                                v: T.let = load // (columns // lanes) % vectors
                                d: T.let = load % (columns // lanes) * lanes
                                if block * samples + s < B:
                                    for lane in T.vectorized(lanes):
                                        if v == 0:
                                            loaded[lane] = Dense[
                                                block * samples + s, stretch * columns + d + lane
                                            ]
                                        else:
                                            loaded[lane] = Embeddings[
                                                block * samples + s,
                                                T.max(v - 1, 0),
                                                stretch * columns + d + lane,
                                            ]
                                    for lane in T.unroll(lanes):
                                        rows[(s * vectors + v) * pitch + d + lane] = loaded[lane]
                        T.tvm_storage_sync("shared")
                        if item < samples * squares:
                            for d in T.serial(columns):
                                for r in T.unroll(SIDE):
                                    left[r] = rows[
                                        (sample * vectors + T.min(upper[0] * SIDE + r, features))
                                        * pitch
                                        + d
                                    ]
                                    right[r] = rows[
                                        (sample * vectors + T.min(lower * SIDE + r, features))
                                        * pitch
                                        + d
                                    ]
                                for r in T.unroll(SIDE):
                                    for c in T.unroll(SIDE):
                                        gram[r, c] = gram[r, c] + left[r] * right[c]
                    T.tvm_storage_sync("shared")
                    if item < samples * squares and block * samples + sample < B:
                        for r in T.unroll(SIDE):
                            for c in T.unroll(SIDE):
                                i: T.let = upper[0] * SIDE + r
                                j: T.let = lower * SIDE + c
                                if i < vectors and j < i:
                                    if staged:
                                        stage[sample, i * (i - 1) // 2 + j] = gram[r, c]
                                    else:
                                        Out[
                                            block * samples + sample,
                                            width + i * (i - 1) // 2 + j,
                                        ] = gram[r, c]
                T.tvm_storage_sync("shared")
                for step in T.serial(T.ceildiv(samples * out_width, THREADS)):
                    place: T.let = step * THREADS + thread
                    b: T.let = block * samples + place // out_width
                    column: T.let = place % out_width
                    if place < samples * out_width and b < B:
                        if column < width:
                            Out[b, column] = Dense[b, column]
                        else:
                            if staged:
                                Out[b, column] = stage[place // out_width, column - width]

    return interaction


def backward_kernel(features: int, width: int, dtype: str) -> PrimFunc:
    """Cotangent (B, D + F (F + 1) / 2) -> cotangents of dense (B, D) and embeddings (B, F, D)."""
    vectors = features + 1
    tiles = -(-vectors // SIDE)
    samples, columns, staged = backward_blocking(vectors, width, _itemsize(dtype))
    lanes = vector_lanes(columns, dtype)
    loads = samples * vectors * columns // lanes
    items = samples * tiles * columns // lanes
    entries = samples * vectors * vectors if staged else 0
    out_width = width + features * vectors // 2

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
        for block in T.thread_binding(
            T.max(T.ceildiv(B, T.int64(samples)), T.int64(1)), thread="blockIdx.x"
        ):
            for thread in T.thread_binding(THREADS, thread="threadIdx.x"):
                rows = T.alloc_buffer((samples, vectors, columns), dtype, scope="shared")
                pair = T.alloc_buffer(
                    (samples, vectors if staged else 1, vectors if staged else 1),
                    dtype,
                    scope="shared",
                )
                pair[0, 0, 0] = T.cast(0, dtype)  # TVM refuses an array that nobody touches
                total = T.alloc_buffer((SIDE, lanes), dtype, scope="local")
                factor = T.alloc_buffer((1,), dtype, scope="local")
                for step in T.serial(T.ceildiv(entries, THREADS)):
                    entry: T.let = step * THREADS + thread
                    owner: T.let = entry // (vectors * vectors)
                    i: T.let = entry // vectors % vectors
                    j: T.let = entry % vectors
                    if entry < entries and block * samples + owner < B:
                        if i == j:
                            pair[owner, i, j] = T.cast(0, dtype)
                        else:
                            high: T.let = T.max(i, j)
                            pair[owner, i, j] = Cotangent[
                                block * samples + owner,
                                width + high * (high - 1) // 2 + T.min(i, j),
                            ]
                for stretch in T.serial(width // columns):
                    T.tvm_storage_sync("shared")
                    for step in T.serial(T.ceildiv(loads, THREADS)):
                        load: T.let = step * THREADS + thread
                        if load < loads:
                            s: T.let = load // (vectors * columns // lanes)
                            v: T.let = load // (columns // lanes) % vectors
                            d: T.let = load % (columns // lanes) * lanes
                            if block * samples + s < B:
                                if v == 0:
                                    for lane in T.vectorized(lanes):
                                        rows[s, v, d + lane] = Dense[
                                            block * samples + s, stretch * columns + d + lane
                                        ]
                                else:
                                    for lane in T.vectorized(lanes):
                                        rows[s, v, d + lane] = Embeddings[
                                            block * samples + s,
                                            T.max(v - 1, 0),
                                            stretch * columns + d + lane,
                                        ]
                    T.tvm_storage_sync("shared")
                    for turn in T.serial(T.ceildiv(items, THREADS)):
                        item: T.let = turn * THREADS + thread
                        sample: T.let = item // (tiles * columns // lanes)
                        tile: T.let = item // (columns // lanes) % tiles
                        column: T.let = item % (columns // lanes) * lanes
                        b: T.let = block * samples + sample
                        if item < items and b < B:
                            for r in T.unroll(SIDE):
                                for lane in T.vectorized(lanes):
                                    total[r, lane] = T.cast(0, dtype)
                            for j in T.serial(vectors):
                                for r in T.unroll(SIDE):
                                    row: T.let = T.min(tile * SIDE + r, vectors - 1)
                                    if staged:
                                        factor[0] = pair[sample, row, j]
                                    else:
                                        larger: T.let = T.max(T.max(row, j), 1)
                                        factor[0] = T.if_then_else(
                                            row == j,
                                            T.cast(0, dtype),
                                            Cotangent[
                                                b,
                                                width + larger * (larger - 1) // 2 + T.min(row, j),
                                            ],
                                        )
                                    for lane in T.vectorized(lanes):
                                        total[r, lane] = (
                                            total[r, lane]
                                            + factor[0] * rows[sample, j, column + lane]
                                        )
                            for r in T.unroll(SIDE):
                                vector: T.let = tile * SIDE + r
                                c: T.let = stretch * columns + column
                                if vector == 0:
                                    for lane in T.vectorized(lanes):
                                        DenseCotangent[b, c + lane] = (
                                            total[r, lane] + Cotangent[b, c + lane]
                                        )
                                else:
                                    if vector < vectors:
                                        for lane in T.vectorized(lanes):
                                            EmbeddingsCotangent[
                                                b, T.max(vector - 1, 0), c + lane
                                            ] = total[r, lane]

    return interaction_backward


def _itemsize(dtype: str) -> int:
    return {"float16": 2, "float32": 4, "float64": 8}[dtype]
