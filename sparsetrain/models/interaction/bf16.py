# SPDX-License-Identifier: Apache-2.0
"""CPU kernels of the dot interaction in bfloat16, by AVX512_BF16; `operator` has the formula.

Operands are rounded as a sample is read; sums and results are float32. An instruction multiplies
pairs of neighbours along the summed axis, so operands are laid out in pairs first: forward pairs of
columns of ``X`` transposed; backward pairs of vectors, and of the symmetric matrix ``G`` of the
pairs' cotangents.

Parallel: blocks of samples. Vectorised: forward the columns of the Gram matrix, backward the width.
Sums run first to last in one thread.

Precondition: the width is a multiple of `LANES`. Cost: twice the float32 kernels' products per
instruction, for a rounding and a transpose of every vector. Forward that is faster; backward, where
memory is the limit, only for samples that stay in the caches
(`sparsetrain.compiler.precision.policy`).
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from math import gcd
from typing import Any

from tvm import tirx
from tvm.script.ir_builder import tirx as T
from tvm.tirx import PrimFunc

from sparsetrain.compiler.schedule.bf16.helpers import HELPERS
from sparsetrain.kernels.builder import kernel
from sparsetrain.models.interaction.cpu_common import (
    LANES,
    address,
    backward_arguments,
    call_,
    cleared,
    forward_arguments,
    lanes,
    local,
    long,
    round_up,
    run,
    samples_of_tasks,
)
from sparsetrain.models.interaction.result_layout import pair_column

PAIRS = 2 * LANES  # numbers of a vector of pairs
MAX_SUMS = 28  # vectors of LANES in registers, which leaves some for the operands
ADJACENT = 4  # most vectors of a row in a register tile: their stores fill adjacent lines


def forward_kernel(features: int, width: int, dtype: str) -> PrimFunc:
    """Dense (B, D), embeddings (B, F, D) -> (B, D + F (F + 1) / 2), all float32."""
    del dtype  # float32: others are not rounded
    blocks = -(-features // LANES)
    with kernel("interaction") as built:
        dense, embeddings, out = forward_arguments(features, width)
        with samples_of_tasks(dense.shape[0], HELPERS) as samples:
            columns = cleared((round_up(width // 2, LANES), blocks * PAIRS), "uint16")
            first = cleared((width,), "uint16")
            dots = cleared((blocks * LANES,), "float32")
            with samples() as b:
                _transpose_(columns, embeddings, b)
                with T.serial(0, width // LANES) as v:
                    _round_(first, [v * LANES], dense, [b, v * LANES], LANES)
                    T.buffer_store(out, dense[b, lanes(v)], [b, lanes(v)])
                for block in range(blocks):
                    for rows in _parts(range(block * LANES, features)):
                        _gram_(out, dots, (columns, first), b, block, rows)
                for j in range(features):
                    T.buffer_store(out, dots[j], [b, pair_column(width, j + 1, 0)])
    return built.get()


def backward_kernel(features: int, width: int, dtype: str) -> PrimFunc:
    """Cotangent (B, D + F (F + 1) / 2) -> cotangents of dense (B, D) and embeddings (B, F, D)."""
    del dtype  # float32: others are not rounded
    vectors = features + 1
    across, pairs = round_up(vectors, LANES), -(-vectors // 2)
    adjacent = gcd(width // LANES, ADJACENT)
    with kernel("interaction_backward") as built:
        arguments = backward_arguments(features, width)
        dense, embeddings, cotangent, to_dense, to_embeddings = arguments
        with samples_of_tasks(dense.shape[0], HELPERS) as samples:
            lower = cleared((across, across), "uint16")
            matrix = cleared((round_up(across // 2, LANES), 2 * across), "uint16")
            two = cleared((2, width), "float32")
            right = cleared((pairs, 2 * width), "uint16")
            with samples() as b:
                _symmetric_(matrix, lower, cotangent, b, (vectors, width))
                _pair_vectors_(right, two, dense, embeddings, b)
                with T.serial(0, width // LANES // adjacent) as v:
                    for rows in _parts(range(vectors), adjacent):
                        sums = _products_(matrix, right, v, rows, adjacent)
                        for place, (i, n) in enumerate(product(rows, range(adjacent))):
                            total = sums[place, tirx.Ramp(0, 1, LANES)]
                            at = lanes(v * adjacent + n)
                            if i:
                                T.buffer_store(to_embeddings, total, [b, i - 1, at])
                            else:
                                T.buffer_store(to_dense, total + cotangent[b, at], [b, at])
    return built.get()


def _transpose_(columns: Any, embeddings: Any, b: Any) -> None:
    """Round the embeddings of a sample to (pair of columns, embedding and column in the pair)."""
    features, width = (int(extent) for extent in embeddings.shape[1:])
    for first in range(0, features, LANES):
        with T.serial(0, -(-width // PAIRS)) as step:
            whole = width % PAIRS == 0 or width < PAIRS
            count = min(width, PAIRS) if whole else width - step * PAIRS
            call_(
                "transposed_float",
                T.address_of(columns[step * LANES, first * 2]),
                long(columns.shape[1]),
                T.address_of(embeddings[b, first, step * PAIRS]),
                long(width),
                count,
                min(features - first, LANES),
                count,
            )


def _gram_(out: Any, dots: Any, operands: tuple[Any, Any], b: Any, block: int, rows: range) -> None:
    """Multiply `rows` of the embeddings, and the dense vector, by one block of columns.

    The block's own first row has no column below the diagonal; the dense vector takes its place.
    """
    columns, first = operands
    width = int(first.shape[0])
    sums = _zeros(len(rows))
    with T.serial(0, width // 2) as pair:
        right = columns[pair, tirx.Ramp(block * PAIRS, 1, PAIRS)]
        for place, row in enumerate(rows):
            of_dense = row == block * LANES
            left = first[_two(pair)] if of_dense else columns[pair, _two(row)]
            _add_dot_(sums, place, left, right)
    for place, row in enumerate(rows):
        total = sums[place, tirx.Ramp(0, 1, LANES)]
        if row == block * LANES:
            T.buffer_store(dots, total, [tirx.Ramp(block * LANES, 1, LANES)])
        else:
            to = T.address_of(out[b, pair_column(width, row + 1, 1 + block * LANES)])
            call_("store", to, total, min(row - block * LANES, LANES))


def _symmetric_(matrix: Any, lower: Any, cotangent: Any, b: Any, sizes: tuple[int, int]) -> None:
    """Write ``G`` as (pair of columns, row and column in the pair): a triangle and its transpose.

    On and above its diagonal `lower` is zero, and stays so.
    """
    vectors, width = sizes
    across = int(lower.shape[1])
    for i in range(1, vectors):
        for j in range(0, i, LANES):
            _round_(lower, [i, j], cotangent, [b, pair_column(width, i, j)], min(i - j, LANES))
    for row in range(0, across, LANES):
        for column in range(0, across, PAIRS):
            call_(
                "transposed_i16",
                T.address_of(matrix[column // 2, 2 * row]),
                long(2 * across),
                T.address_of(lower[row, column]),
                long(across),
                min(across - column, PAIRS),
                LANES,
                min(across - column, PAIRS),
            )
    with T.serial(0, -(-vectors // 2)) as pair:
        for column in range(0, across, LANES):
            call_(
                "merge",
                T.address_of(matrix[pair, 2 * column]),
                T.address_of(lower[2 * pair, column]),
                T.address_of(lower[2 * pair + 1, column]),
            )


def _pair_vectors_(right: Any, two: Any, dense: Any, embeddings: Any, b: Any) -> None:
    """Round all vectors of a sample to (pair of vectors, column and vector in the pair)."""
    features, width = (int(extent) for extent in embeddings.shape[1:])
    with T.serial(0, width // LANES) as v:
        # The dense vector and the first embedding lie apart in memory.
        T.buffer_store(two, dense[b, lanes(v)], [0, lanes(v)])
        T.buffer_store(two, embeddings[b, 0, lanes(v)], [1, lanes(v)])
        _interleave_(right, 0, v, T.address_of(two[0, v * LANES]), 2)
    with T.serial(0, (features - 1) // 2) as n, T.serial(0, width // LANES) as v:
        _interleave_(right, n + 1, v, T.address_of(embeddings[b, 2 * n + 1, v * LANES]), 2)
    if features % 2 == 0:
        with T.serial(0, width // LANES) as v:
            source = T.address_of(embeddings[b, features - 1, v * LANES])
            _interleave_(right, features // 2, v, source, 1)


def _interleave_(right: Any, pair: Any, v: Any, source: Any, rows: int) -> None:
    places = [T.address_of(right[pair, v * PAIRS + half]) for half in (0, LANES)]
    stride = long(int(right.shape[1]) // 2)
    call_("pairs_float", *places, source, stride, LANES, rows)


def _products_(matrix: Any, right: Any, v: Any, rows: range, adjacent: int) -> Any:
    """Multiply some rows of ``G`` by adjacent vectors, row by row."""
    sums = _zeros(len(rows) * adjacent)
    with T.serial(0, int(right.shape[0])) as pair:
        for place, (row, n) in enumerate(product(rows, range(adjacent))):
            vectors = right[pair, run((v * adjacent + n) * PAIRS, PAIRS)]
            _add_dot_(sums, place, matrix[pair, _two(row)], vectors)
    return sums


def _add_dot_(sums: Any, place: int, left: Any, right: Any) -> None:
    lanes = [place, tirx.Ramp(0, 1, LANES)]
    total = tirx.call_extern(
        "float32x16", "sparsetrain_dot", tirx.BufferLoad(sums, lanes), left, right
    )
    T.buffer_store(sums, total, lanes)


def _round_(to: Any, place: list[Any], source: Any, start: list[Any], count: int) -> None:
    call_("round_float", address(to, *place), address(source, *start), count)


def _zeros(rows: int) -> Any:
    sums = local((rows, LANES), "float32")
    for row in range(rows):
        zeros = tirx.Broadcast(tirx.const(0, "float32"), LANES)
        T.buffer_store(sums, zeros, [row, tirx.Ramp(0, 1, LANES)])
    return sums


def _parts(rows: range, vectors: int = 1) -> Iterator[range]:
    """Split rows of so many vectors of sums into the fewest, almost equal parts for registers."""
    count = -(-len(rows) // ((MAX_SUMS + 1 - vectors) // vectors))
    size = -(-len(rows) // max(count, 1))
    return (rows[at : at + size] for at in range(0, len(rows), max(size, 1)))


def _two(pair: Any) -> Any:
    return run(pair * 2, 2)
