# SPDX-License-Identifier: Apache-2.0
"""CPU kernels of the dot interaction in float32 and float64; `operator` has the formula.

Threads process samples in parallel. The forward kernel is vectorized over the columns of the Gram
matrix (the vectors are transposed, so that no dot product needs a sum across lanes), the backward
kernel over the width. A tile of rows shares the loads of the second operand and stays in registers
for all F and D. It has as many sums as the registers hold, since a larger tile would be loaded and
stored at every step. The forward kernel computes columns in blocks of 16, and skips blocks above
the diagonal.

A kernel is parsed once for each F and D, which takes tens of milliseconds.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from typing import Any, NamedTuple

from tvm.script import tirx as T
from tvm.script.ir_builder import tirx as build
from tvm.target import Target
from tvm.tirx import PrimFunc, const

from sparsetrain.compiler.schedule.register_tile import VectorUnit, vector_unit
from sparsetrain.kernels import builder
from sparsetrain.kernels.builder import SCHEDULED
from sparsetrain.kernels.llvm import LANES, PRAGMA, TRANSPOSE, transpose
from sparsetrain.kernels.loops import column_tiles
from sparsetrain.models.interaction.result_layout import output_width, pair_column
from sparsetrain.runtime.host import host_target

# Number of registers with independent sums that hides the latency of an addition.
_MIN_SUMS = 8
_FLOAT_BITS = 32


def round_up(number: int, to: int) -> int:
    """The first multiple of `to` that is not below `number`."""
    return -(-number // to) * to


class Tile(NamedTuple):
    """A block of sums that is kept in registers.

    Parameters
    ----------
    accumulators : int
        Number of vectors of `LANES` sums.
    registers : int
        Number of registers of each vector.
    max_lanes : int
        Maximum number of columns of a tile in the backward kernel.
    """

    accumulators: int
    registers: int
    max_lanes: int

    def forward_rows(self, rows: int) -> list[int]:
        """Split rows into as few tiles as possible; return their almost equal heights."""
        tiles = -(-rows // self.accumulators)
        return [(n + 1) * rows // tiles - n * rows // tiles for n in range(tiles)]

    def backward_rows(self, rows: int, lanes: int) -> int:
        """Return the number of rows of a tile of `lanes` columns that needs the least padding."""
        vectors = round_up(lanes, LANES) // LANES
        largest = max(1, min(rows, self.accumulators // vectors))
        smallest = min(largest, -(-_MIN_SUMS // (self.registers * vectors)))
        return min(range(smallest, largest + 1), key=lambda n: (round_up(rows, n), -n))


def select_tile(unit: VectorUnit) -> Tile:
    """Select the largest tile that leaves registers for an operand's row and a factor."""
    registers = -(-LANES * _FLOAT_BITS // unit.bits)
    fitting = (unit.registers - 1) // registers - 1
    max_lanes = 4 * LANES if fitting >= LANES else LANES
    return Tile(max(1, min(LANES, fitting)), registers, max_lanes)


def forward_kernel(features: int, width: int, dtype: str, tile: Tile | None = None) -> PrimFunc:
    """Dense (B, D), embeddings (B, F, D) -> (B, D + F (F + 1) / 2).

    `tile` is summed in registers; by default it is the largest that the target's registers hold.
    """
    return _forward(features, width, dtype, tile or _tile())


def backward_kernel(features: int, width: int, dtype: str, tile: Tile | None = None) -> PrimFunc:
    """Cotangent (B, D + F (F + 1) / 2) -> cotangents of dense (B, D) and embeddings (B, F, D).

    G is the symmetric matrix of the pairs' cotangents, with a zero diagonal. The vectors'
    cotangents are the rows of ``G X``; the dense vector's also includes the first D columns of
    `cotangent`. G is never stored: left of its diagonal, the kernel reads rows of the packed
    triangle, right of it columns.
    """
    return _backward(features, width, dtype, tile or _tile())


def _tile() -> Tile:
    """The tile for the current target, or else for this machine."""
    return select_tile(vector_unit(Target.current(allow_none=True) or host_target()))


@cache
def _forward(features: int, width: int, dtype: str, tile: Tile) -> PrimFunc:
    groups, rest = divmod(features, LANES)
    columns = round_up(features, LANES)
    tiles, lanes = column_tiles(width)
    out_width = output_width(features, width)
    in_vectors = width % LANES == 0 and dtype == "float32"
    transpose_into = _transpose_vectors if in_vectors else _transpose_elements

    @builder.prim_func(s_tir=True, private=True)
    def interaction(dense: T.handle, embeddings: T.handle, out: T.handle):
        T.func_attr(SCHEDULED)
        B = T.int64()
        Dense = T.match_buffer(dense, (B, width), dtype)
        Embeddings = T.match_buffer(embeddings, (B, features, width), dtype)
        Out = T.match_buffer(out, (B, out_width), dtype)
        T.attr(T.int32(0), PRAGMA, TRANSPOSE)
        for b in T.parallel(B):
            column = T.alloc_buffer((width, columns), dtype, scope="local")
            transpose_into(column, Dense, Embeddings, b)
            for t in T.serial(tiles):
                for d in T.vectorized(lanes):
                    Out[b, t * lanes + d] = Dense[b, t * lanes + d]
            for group in T.serial(groups):
                _multiply_group(column, Embeddings, Out, b, group, tile.forward_rows(LANES))
            _multiply_group(column, Embeddings, Out, b, groups, tile.forward_rows(rest))

    return interaction


def _transpose_elements(column: Any, dense: Any, embeddings: Any, b: Any) -> None:
    """Transpose all vectors but the last, which is never the j of a pair i > j."""
    width, before = int(embeddings.shape[2]), int(embeddings.shape[1]) - 1
    with build.serial(0, width) as d:
        build.buffer_store(column, dense[b, d], [d, 0])
        with build.serial(0, before) as f:
            build.buffer_store(column, embeddings[b, f, d], [d, f + 1])


def _transpose_vectors(column: Any, dense: Any, embeddings: Any, b: Any) -> None:
    """Do the same, 16 x 16 numbers at a time; the padding of `column` is undefined."""
    features, width = map(int, embeddings.shape[1:])
    for first in range(0, features, LANES):
        with build.serial(0, width // LANES) as t:
            d = t * LANES
            top = embeddings[b, first - 1, d] if first else dense[b, d]
            below = embeddings[b, first, d]
            vectors = features + 1 - first
            build.evaluate(transpose(column[d, first], column.shape[1], top, below, width, vectors))


def _multiply_group(
    column: Any, embeddings: Any, out: Any, b: Any, group: Any, heights: list[int]
) -> None:
    """Multiply vectors from ``16 group + 1`` on, in tiles of these heights, by all earlier vectors.

    Results are stored in vectors of 16. In the diagonal block, the end of a vector overlaps later
    rows, which overwrite it; so that block is computed first.
    """
    tiles = [range(sum(heights[:n]), sum(heights[: n + 1])) for n in range(len(heights))]
    for rows in tiles:
        _multiply_block(column, embeddings, out, b, (group, group, rows))
    if tiles:
        with build.serial(0, group) as block:
            for rows in tiles:
                _multiply_block(column, embeddings, out, b, (group, block, rows))


def _multiply_block(column: Any, embeddings: Any, out: Any, b: Any, place: Any) -> None:
    group, block, rows = place
    features, width = map(int, embeddings.shape[1:])
    dtype = str(embeddings.dtype)
    gram = _zeros(len(rows), LANES, dtype)
    first = group * LANES + rows.start
    lanes = build.vectorized(0, LANES)
    with build.serial(0, width) as d, build.unroll(0, len(rows)) as n, lanes as j:
        term = embeddings[b, first + n, d] * column[d, block * LANES + j]
        build.buffer_store(gram, gram[n, j] + term, [n, j])

    def store(n: Any, lanes: int) -> None:
        begin = pair_column(width, first + n + 1, block * LANES)
        with build.vectorized(0, lanes) as j:
            build.buffer_store(out, gram[n, j], [b, begin + j])

    if block is group and isinstance(group, int):
        for n, r in enumerate(rows):
            store(n, _stored(features, group * LANES + r + 1, r))
    else:
        with build.unroll(0, len(rows)) as n:
            store(n, LANES)


def _zeros(rows: int, lanes: int, dtype: str) -> Any:
    """Allocate a register tile of zeros."""
    tile = build.alloc_buffer((rows, lanes), dtype, scope="local")
    with build.unroll(0, rows) as r, build.vectorized(0, lanes) as lane:
        build.buffer_store(tile, const(0, dtype), [r, lane])
    return tile


def _stored(features: int, i: int, r: int) -> int:
    """Return how many columns of the last diagonal block to store for row `i`, its row `r`.

    These are all columns, except in rows where they would run past the end of the sample.
    """
    remaining = features * (features + 1) // 2 - i * (i + 1) // 2
    return LANES if LANES - (r + 1) <= remaining else r + 1


@cache
def _backward(features: int, width: int, dtype: str, tile: Tile) -> PrimFunc:
    tiles, lanes = column_tiles(width, tile.max_lanes)
    tile_rows = tile.backward_rows(features + 1, lanes)
    whole, rest = divmod(features + 1, tile_rows)
    out_width = output_width(features, width)

    @builder.prim_func(s_tir=True, private=True)
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
        inputs = T.meta_var((Dense, Embeddings, Cotangent))
        outputs = T.meta_var((DenseCotangent, EmbeddingsCotangent))
        for b in T.parallel(B):
            for t in T.serial(tiles):
                part = T.meta_var((b, t * lanes, lanes))
                _sum_rows(inputs, outputs, part, 0, tile_rows)
                for n in T.serial(whole - 1):
                    _sum_rows(inputs, outputs, part, (n + 1) * tile_rows, tile_rows)
                _sum_rows(inputs, outputs, part, whole * tile_rows, rest)

    return interaction_backward


def _sum_rows(inputs: Any, outputs: Any, part: Any, first: Any, rows: int) -> None:
    """Sum `rows` rows of ``G X`` from `first` on, in some columns of a sample.

    Terms are added in the order of the columns of G.
    """
    if not rows:
        return
    dense, embeddings, cotangent = inputs
    b, column, lanes = part
    at_top = isinstance(first, int) and first == 0
    features, width = map(int, embeddings.shape[1:])
    dtype = str(embeddings.dtype)
    total = _zeros(rows, lanes, dtype)

    def add(j: Any, among: tuple[int, int], place: Callable[[Any], Any]) -> None:
        """Add vector `j` (None: the dense one) times the pair's cotangent to a range of rows."""
        with build.unroll(*among) as r, build.vectorized(0, lanes) as d:
            x = dense[b, column + d] if j is None else embeddings[b, j - 1, column + d]
            build.buffer_store(total, total[r, d] + cotangent[b, place(r)] * x, [r, d])

    pair = partial(pair_column, width)
    if not at_top:
        add(None, (0, rows), lambda r: pair(first + r, 0))
        with build.serial(1, first) as j:
            add(j, (0, rows), lambda r: pair(first + r, j))
    for c in range(rows):
        j = None if at_top and not c else first + c
        add(j, (0, c), lambda r: pair(first + c, first + r))  # noqa: B023 (called at once)
        add(j, (c + 1, rows), lambda r: pair(first + r, first + c))  # noqa: B023
    with build.serial(first + rows, features + 1) as j:
        add(j, (0, rows), lambda r: pair(j, first + r))
    if at_top:
        with build.vectorized(0, lanes) as d:
            top = total[0, d] + cotangent[b, column + d]
            build.buffer_store(outputs[0], top, [b, column + d])
    with build.unroll(int(at_top), rows) as r, build.vectorized(0, lanes) as d:
        build.buffer_store(outputs[1], total[r, d], [b, first + r - 1, column + d])
