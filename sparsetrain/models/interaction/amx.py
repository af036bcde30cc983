# SPDX-License-Identifier: Apache-2.0
"""CPU kernels of the dot interaction in bfloat16, by AMX tiles; `operator` has the formula.

Operands are rounded as a sample is read; sums and results are float32.

Forward: the Gram matrix is computed in 16 x 16 blocks; blocks above the diagonal are skipped. Its
rows are the embeddings; its columns are all vectors but the last, transposed and packed in pairs.
Backward: the symmetric matrix ``G`` of the pairs' cotangents is multiplied by the vectors, which
are packed in pairs of adjacent rows and not transposed. Rows of ``G`` are processed 16 at a time;
the dense vector's row is processed alone, since its result has a separate output.

Threads process blocks of samples in parallel. A pair's sum is computed in one thread, 32 columns at
a time.

Precondition: the width is a multiple of 16. Cost: the products are cheap; packing and memory
dominate, so memory is prefetched and large cotangents bypass the caches. Packing several samples
before the products was slower, since they do not fit in the first-level cache.
"""

from __future__ import annotations

from itertools import product
from typing import Any

from tvm import tirx
from tvm.script.ir_builder import tirx as T
from tvm.tirx import PrimFunc

from sparsetrain.kernels.builder import kernel
from sparsetrain.kernels.llvm import LANES
from sparsetrain.models.interaction.amx_packing import (
    NUMBERS,
    PACKING,
    ROW_BYTES,
    address,
    backward_arguments,
    call_,
    cleared,
    forward_arguments,
    lanes,
    long,
    rows_of_tiles,
    run,
    samples_of_tasks,
    symmetric,
    tiles,
)
from sparsetrain.models.interaction.result_layout import pair_column

TILE = NUMBERS * LANES
AHEAD = 3  # samples between the current one and the one that is prefetched
# Stores bypass the caches if the embeddings' cotangents have at least this many bytes. On two cores
# with 2 MB of second-level cache each, including the time of the next reader, this is faster from
# 13 MB on and slower at 7 MB.
STREAMED = 10 << 20
# Tile registers. Forward: 2 x 2 sums, two left operands, two right operands. Backward: sums and a
# left operand for 16 rows, for the remaining rows and for one row; one right operand.
_LEFT, _RIGHT = (4, 5), (6, 7)
_FULL, _REST, _ONE = range(3)
_LEFTS, _VECTORS = (3, 4, 5), 6
# Streaming stores are not ordered with normal stores, such as the one that marks a task as done. So
# each task that streams ends with `_fence_`; else a thread that waits for it may read old values.
_STREAMING = f"""
declare void @llvm.x86.sse.sfence()
define linkonce_odr i32 @sparsetrain_stream(ptr %to, <{LANES} x float> %numbers)
    alwaysinline nounwind {{
  store <{LANES} x float> %numbers, ptr %to, align 64, !nontemporal !0
  ret i32 0
}}

define linkonce_odr i32 @sparsetrain_fence() alwaysinline nounwind {{
  call void @llvm.x86.sse.sfence()
  ret i32 0
}}
!0 = !{{i32 1}}
"""


def forward_kernel(features: int, width: int, dtype: str) -> PrimFunc:
    """Dense (B, D), embeddings (B, F, D) -> (B, D + F (F + 1) / 2), all float32."""
    del dtype  # always float32: only float32 is rounded
    blocks, steps = -(-features // LANES), -(-width // NUMBERS)
    products = [(_sums(i, j), _LEFT[i], _RIGHT[j]) for i, j in product(range(2), range(2))]
    with kernel("interaction") as built:
        dense, embeddings, out = forward_arguments(features, width)
        with samples_of_tasks(dense.shape[0], PACKING + tiles(products)) as samples:
            rows = cleared(((blocks + 1) * LANES, steps * NUMBERS), "uint16")
            pairs = cleared((blocks, steps * TILE), "uint16")
            gram = cleared((blocks * LANES, blocks * LANES), "float32")
            call_("amx_begin")
            with samples() as b:
                with T.serial(0, -(-int(out.shape[1]) // LANES)) as line:
                    call_("amx_prefetch", address(out, b + AHEAD, line * LANES))
                _round_vectors_(rows, pairs, dense, embeddings, b)
                for left, right in product(range(0, blocks, 2), range(0, blocks, 2)):
                    _gram_(gram, rows, pairs, range(left, min(left + 2, blocks)), right)
                with T.serial(0, width // LANES) as v:
                    T.buffer_store(out, dense[b, lanes(v)], [b, lanes(v)])
                for i in range(features):
                    for j in range(0, i + 1, LANES):
                        to = address(out, b, pair_column(width, i + 1, j))
                        call_("store", to, gram[i, run(j, LANES)], min(i + 1 - j, LANES))
            call_("amx_end")
    return built.get()


def _round_vectors_(rows: Any, pairs: Any, dense: Any, embeddings: Any, b: Any) -> None:
    """Round all vectors of a sample to `rows`, and all but the last, transposed, to `pairs`.

    The padding of the last block is undefined, but sums over it are never read.
    """
    features, width = (int(extent) for extent in embeddings.shape[1:])
    whole, rest = divmod(width, NUMBERS)

    def pack(first: int, step: Any, columns: int) -> None:
        column = step * NUMBERS
        call_(
            f"amx_slab_{columns}",
            address(rows, first, column),
            long(rows.shape[1]),
            address(pairs, first // LANES, step * TILE),
            address(embeddings, b, first - 1, column) if first else address(dense, b, column),
            address(embeddings, b, first, column),
            long(width),
            long(min(features + 1 - first, LANES)),
            long(AHEAD * features * width),
        )

    for first in range(0, features, LANES):
        with T.serial(0, whole) as step:
            pack(first, step, NUMBERS)
        if rest:
            pack(first, whole, rest)
    if features % LANES == 0:  # the last vector begins a block, which needs no columns
        with T.serial(0, width // LANES) as v:
            source = address(embeddings, b, features - 1, v * LANES)
            call_("round_float", address(rows, features, v * LANES), source, LANES)


def _sums(i: int, j: int) -> int:
    return 2 * i + j


def _gram_(gram: Any, rows: Any, pairs: Any, lefts: range, right: int) -> None:
    """Compute 2 x 2 blocks of the Gram matrix, without blocks above the diagonal."""
    places = [(i, j) for i in lefts for j in (right, right + 1) if j <= i]
    tile = {(i, j): _sums(i % 2, j % 2) for i, j in places}
    for place in places:
        call_(f"amx_zero_{tile[place]}")
    with T.serial(0, int(rows.shape[1]) // NUMBERS if places else 0) as step:
        for i in dict.fromkeys(i for i, _ in places):
            at = address(rows, 1 + i * LANES, step * NUMBERS)
            call_(f"amx_load_{_LEFT[i % 2]}", at, long(2 * int(rows.shape[1])))
        for j in dict.fromkeys(j for _, j in places):
            call_(f"amx_load_{_RIGHT[j % 2]}", address(pairs, j, step * TILE), long(ROW_BYTES))
        for i, j in places:
            call_(f"amx_add_{tile[i, j]}_{_LEFT[i % 2]}_{_RIGHT[j % 2]}")
    for i, j in places:
        at = address(gram, i * LANES, j * LANES)
        call_(f"amx_store_{tile[i, j]}", at, long(4 * int(gram.shape[1])))


def backward_kernel(features: int, width: int, dtype: str) -> PrimFunc:
    """Cotangent (B, D + F (F + 1) / 2) -> cotangents of dense (B, D) and embeddings (B, F, D)."""
    del dtype  # always float32: only float32 is rounded
    vectors = features + 1
    steps = -(-vectors // NUMBERS)
    heights = [LANES, features % LANES or LANES, 1]
    products = [(part, _LEFTS[part], _VECTORS) for part in (_FULL, _REST, _ONE)]
    helpers = PACKING + tiles(products) + symmetric(vectors) + _STREAMING
    with kernel("interaction_backward") as built:
        arguments = backward_arguments(features, width)
        dense, embeddings, cotangent, to_dense, to_embeddings = arguments
        with samples_of_tasks(dense.shape[0], helpers) as samples:
            matrix = cleared((-(-vectors // LANES) * LANES, steps * NUMBERS), "uint16")
            pairs = cleared((steps * LANES, 2 * width), "uint16")
            sums = cleared((vectors, width), "float32")
            call_("amx_rows", long(rows_of_tiles([*heights, *heights, LANES, LANES])))
            with samples() as b:
                call_(
                    f"amx_symmetric_{vectors}", address(matrix, 0, 0), address(cotangent, b, width)
                )
                _pair_vectors_(pairs, dense, embeddings, b)
                with T.serial(0, width // LANES) as v:
                    for group in _groups(features):
                        _products_(sums, matrix, pairs, v, group)
                with T.serial(0, width // LANES) as v:
                    total = sums[0, lanes(v)] + cotangent[b, lanes(v)]
                    T.buffer_store(to_dense, total, [b, lanes(v)])
                _write_(to_embeddings, sums, b)
            _fence_()
            call_("amx_end")
    return built.get()


def _pair_vectors_(pairs: Any, dense: Any, embeddings: Any, b: Any) -> None:
    """Round a sample's vectors to pairs; row n interleaves columns of vectors 2n and 2n + 1."""
    features, width = (int(extent) for extent in embeddings.shape[1:])

    def pair(n: Any, even: Any, odd: Any, rows: int) -> None:
        with T.serial(0, width // LANES) as v:
            sources = [address(source, *at, v * LANES) for source, at in (even, odd)]
            to = address(pairs, n, v * NUMBERS)
            call_("amx_pair", to, *sources, rows, long(AHEAD * features * width))

    pair(0, (dense, [b]), (embeddings, [b, 0]), 2)
    with T.serial(0, (features - 1) // 2) as n:
        pair(n + 1, (embeddings, [b, 2 * n + 1]), (embeddings, [b, 2 * n + 2]), 2)
    if features % 2 == 0:
        last = (embeddings, [b, features - 1])
        pair(features // 2, last, last, 1)


def _groups(features: int) -> list[list[tuple[int, int]]]:
    """Return groups of (first row of ``G``, tile register); a group uses each register once."""
    whole, rest = divmod(features, LANES)
    parts = [(1 + n * LANES, _FULL) for n in range(whole)]
    parts += [(1 + whole * LANES, _REST)] if rest else []
    parts.append((0, _ONE))
    return [parts] if whole < 2 else [[part] for part in parts]


def _products_(sums: Any, matrix: Any, pairs: Any, v: Any, group: list[tuple[int, int]]) -> None:
    """Multiply some rows of ``G`` by 16 columns of the vectors."""
    width = int(sums.shape[1])
    for _, part in group:
        call_(f"amx_zero_{part}")
    for step in range(int(pairs.shape[0]) // LANES):
        call_(f"amx_load_{_VECTORS}", address(pairs, step * LANES, v * NUMBERS), long(4 * width))
        for row, part in group:
            at = address(matrix, row, step * NUMBERS)
            call_(f"amx_load_{_LEFTS[part]}", at, long(2 * int(matrix.shape[1])))
            call_(f"amx_add_{part}_{_LEFTS[part]}_{_VECTORS}")
    for row, part in group:
        call_(f"amx_store_{part}", address(sums, row, v * LANES), long(4 * width))


def _write_(to_embeddings: Any, sums: Any, b: Any) -> None:
    """Store the embeddings' cotangents, all rows of `sums` but the first; see `STREAMED`."""
    features, width = (int(extent) for extent in to_embeddings.shape[1:])

    def each(write: Any) -> None:
        with T.serial(0, features) as f, T.serial(0, width // LANES) as v:
            write(f, lanes(v), sums[f + 1, lanes(v)])

    with T.If(to_embeddings.shape[0] * (4 * features * width) >= STREAMED):
        with T.Then():
            each(lambda f, at, x: _stream_(to_embeddings, [b, f, at.base], x))
        with T.Else():
            each(lambda f, at, x: T.buffer_store(to_embeddings, x, [b, f, at]))


def _stream_(array: Any, place: list[Any], numbers: Any) -> None:
    """Write a vector of `LANES` float32 past the caches, at the start of a cache line of 64 bytes.

    A store into a cache reads the line first, and evicts a line that might be used again. A
    streaming store does neither, but the next reader reads from memory: it pays off only if the
    result would not stay in the caches.
    """
    to = T.address_of(tirx.BufferLoad(array, place))
    T.evaluate(tirx.call_extern("int32", "sparsetrain_stream", to, numbers))


def _fence_() -> None:
    """Complete the streaming stores of a task before it ends."""
    T.evaluate(tirx.call_extern("int32", "sparsetrain_fence"))
