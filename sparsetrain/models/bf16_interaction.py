# SPDX-License-Identifier: Apache-2.0
"""The dot interaction's CPU kernels in bfloat16; `interaction` says what they compute.

Operands are rounded as a sample is read, products are summed in float32, results are float32. An
instruction multiplies pairs of neighbours in the summed axis, so what it reads is laid out in
pairs first: forward pairs of columns, ``X`` transposed; backward pairs of vectors, and of the
symmetric matrix ``G`` of the pairs' cotangents.

What is parallel: blocks of samples. What is vectorised: forward the columns of the Gram matrix,
backward the width. Sums run first to last in one thread.

Precondition: the width is a multiple of `LANES`. Cost: twice the float32 kernels' products per
instruction, for a rounding and a transpose of every vector. That gains forward; backward memory
bounds both, and only samples that stay in the caches gain (`sparsetrain.precision.policy`).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import product
from math import gcd
from typing import Any

from tvm import tirx
from tvm.script.ir_builder import IRBuilder
from tvm.script.ir_builder import tirx as T
from tvm.target import Target
from tvm.target.codegen import target_has_features
from tvm.tirx import PrimFunc

from sparsetrain.relax_op import SCHEDULED
from sparsetrain.schedule.bf16_helpers import HELPERS

NEEDS = "avx512bf16"
LANES = 16
PAIRS = 2 * LANES  # numbers of a vector of pairs
MOST_SUMS = 28  # vectors of LANES in registers, beside what is multiplied
BESIDE = 4  # vectors of a row in a register tile: their stores fill neighbouring lines
SAMPLES = 16  # of a task: their arrays are allocated once


def runs_on(target: Target | None) -> bool:
    """Whether a target has the instructions."""
    return target is not None and target.kind.name == "llvm" and target_has_features(NEEDS, target)


def forward_kernel(features: int, width: int, dtype: str) -> PrimFunc:
    """Dense (B, D), embeddings (B, F, D) -> (B, D + F (F + 1) / 2), all float32."""
    del dtype  # float32: others are not rounded
    blocks = -(-features // LANES)
    with _kernel("interaction") as built:
        batch = T.int64()
        dense = _argument("dense", (batch, width))
        embeddings = _argument("embeddings", (batch, features, width))
        out = _argument("out", (batch, width + features * (features + 1) // 2))
        with _samples(batch) as samples:
            columns = _cleared((_up(width // 2, LANES), blocks * PAIRS), "uint16")
            first = _cleared((width,), "uint16")
            dots = _cleared((blocks * LANES,), "float32")
            with samples() as b:
                _transpose_(columns, embeddings, b)
                with T.serial(0, width // LANES) as v:
                    _round_(first, [v * LANES], dense, [b, v * LANES], LANES)
                    T.buffer_store(out, dense[b, _lanes(v)], [b, _lanes(v)])
                for block in range(blocks):
                    for rows in _parts(range(block * LANES, features)):
                        _gram_(out, dots, (columns, first), b, block, rows)
                for j in range(features):
                    T.buffer_store(out, dots[j], [b, _pair(width, j + 1, 0)])
    return built.get()


def backward_kernel(features: int, width: int, dtype: str) -> PrimFunc:
    """Cotangent (B, D + F (F + 1) / 2) -> cotangents of dense (B, D) and embeddings (B, F, D)."""
    del dtype  # float32: others are not rounded
    vectors = features + 1
    across, pairs = _up(vectors, LANES), -(-vectors // 2)
    beside = gcd(width // LANES, BESIDE)
    with _kernel("interaction_backward") as built:
        batch = T.int64()
        dense = _argument("dense", (batch, width))
        embeddings = _argument("embeddings", (batch, features, width))
        cotangent = _argument("cotangent", (batch, width + features * vectors // 2))
        to_dense = _argument("dense_cotangent", (batch, width))
        to_embeddings = _argument("embeddings_cotangent", (batch, features, width))
        with _samples(batch) as samples:
            lower = _cleared((across, across), "uint16")
            matrix = _cleared((_up(across // 2, LANES), 2 * across), "uint16")
            two = _cleared((2, width), "float32")
            right = _cleared((pairs, 2 * width), "uint16")
            with samples() as b:
                _symmetric_(matrix, lower, cotangent, b, (vectors, width))
                _pair_vectors_(right, two, dense, embeddings, b)
                with T.serial(0, width // LANES // beside) as v:
                    for rows in _parts(range(vectors), beside):
                        sums = _products_(matrix, right, v, rows, beside)
                        for place, (i, n) in enumerate(product(rows, range(beside))):
                            total = sums[place, tirx.Ramp(0, 1, LANES)]
                            lanes = _lanes(v * beside + n)
                            if i:
                                T.buffer_store(to_embeddings, total, [b, i - 1, lanes])
                            else:
                                T.buffer_store(to_dense, total + cotangent[b, lanes], [b, lanes])
    return built.get()


def _transpose_(columns: Any, embeddings: Any, b: Any) -> None:
    """The embeddings of a sample, as (pair of columns, embedding and column in the pair)."""
    features, width = (int(extent) for extent in embeddings.shape[1:])
    for first in range(0, features, LANES):
        with T.serial(0, -(-width // PAIRS)) as step:
            _call_(
                "transposed_float",
                T.address_of(columns[step * LANES, first * 2]),
                tirx.const(int(columns.shape[1]), "int64"),
                T.address_of(embeddings[b, first, step * PAIRS]),
                tirx.const(width, "int64"),
                min(width, PAIRS) if width % PAIRS == 0 or width < PAIRS else width - step * PAIRS,
                min(features - first, LANES),
            )


def _gram_(out: Any, dots: Any, operands: tuple[Any, Any], b: Any, block: int, rows: range) -> None:
    """Products of `rows` of the embeddings with one block of columns, and of the dense vector's.

    The block's own first row has no column below the diagonal: its place is the dense vector's.
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
            to = T.address_of(out[b, _pair(width, row + 1, 1 + block * LANES)])
            _call_("store", to, total, min(row - block * LANES, LANES))


def _symmetric_(matrix: Any, lower: Any, cotangent: Any, b: Any, sizes: tuple[int, int]) -> None:
    """``G`` as (pair of columns, row and column in the pair): a triangle and its transpose.

    Of `lower` the places on and above the diagonal are zero, and stay it.
    """
    vectors, width = sizes
    lanes = int(lower.shape[1])
    for i in range(1, vectors):
        for j in range(0, i, LANES):
            _round_(lower, [i, j], cotangent, [b, _pair(width, i, j)], min(i - j, LANES))
    for row in range(0, lanes, LANES):
        for column in range(0, lanes, PAIRS):
            _call_(
                "transposed_i16",
                T.address_of(matrix[column // 2, 2 * row]),
                tirx.const(2 * lanes, "int64"),
                T.address_of(lower[row, column]),
                tirx.const(lanes, "int64"),
                min(lanes - column, PAIRS),
                LANES,
            )
    with T.serial(0, -(-vectors // 2)) as pair:
        for column in range(0, lanes, LANES):
            _call_(
                "merge",
                T.address_of(matrix[pair, 2 * column]),
                T.address_of(lower[2 * pair, column]),
                T.address_of(lower[2 * pair + 1, column]),
            )


def _pair_vectors_(right: Any, two: Any, dense: Any, embeddings: Any, b: Any) -> None:
    """All vectors of a sample as (pair of vectors, column and vector in the pair)."""
    features, width = (int(extent) for extent in embeddings.shape[1:])
    with T.serial(0, width // LANES) as v:
        # The dense vector and the first embedding lie apart in memory.
        T.buffer_store(two, dense[b, _lanes(v)], [0, _lanes(v)])
        T.buffer_store(two, embeddings[b, 0, _lanes(v)], [1, _lanes(v)])
        _interleave_(right, 0, v, T.address_of(two[0, v * LANES]), 2)
    with T.serial(0, (features - 1) // 2) as n, T.serial(0, width // LANES) as v:
        _interleave_(right, n + 1, v, T.address_of(embeddings[b, 2 * n + 1, v * LANES]), 2)
    if features % 2 == 0:
        with T.serial(0, width // LANES) as v:
            source = T.address_of(embeddings[b, features - 1, v * LANES])
            _interleave_(right, features // 2, v, source, 1)


def _interleave_(right: Any, pair: Any, v: Any, source: Any, rows: int) -> None:
    places = [T.address_of(right[pair, v * PAIRS + half]) for half in (0, LANES)]
    stride = tirx.const(int(right.shape[1]) // 2, "int64")
    _call_("pairs_float", *places, source, stride, LANES, rows)


def _products_(matrix: Any, right: Any, v: Any, rows: range, beside: int) -> Any:
    """Some rows of ``G`` times some vectors beside one another, row by row."""
    sums = _zeros(len(rows) * beside)
    with T.serial(0, int(right.shape[0])) as pair:
        for place, (row, n) in enumerate(product(rows, range(beside))):
            vectors = right[pair, _run((v * beside + n) * PAIRS, PAIRS)]
            _add_dot_(sums, place, matrix[pair, _two(row)], vectors)
    return sums


def _add_dot_(sums: Any, place: int, left: Any, right: Any) -> None:
    lanes = [place, tirx.Ramp(0, 1, LANES)]
    total = tirx.call_extern(
        "float32x16", "sparsetrain_dot", tirx.BufferLoad(sums, lanes), left, right
    )
    T.buffer_store(sums, total, lanes)


def _round_(to: Any, place: list[Any], source: Any, start: list[Any], count: int) -> None:
    _call_("round_float", _address(to, place), _address(source, start), count)


def _address(array: Any, place: list[Any]) -> Any:
    return T.address_of(tirx.BufferLoad(array, place))


def _call_(name: str, *arguments: Any) -> None:
    T.evaluate(tirx.call_extern("int32", f"sparsetrain_{name}", *map(_number, arguments)))


def _number(value: Any) -> Any:
    return tirx.const(value, "int32") if isinstance(value, int) else value


def _zeros(rows: int) -> Any:
    sums = _local((rows, LANES), "float32")
    for row in range(rows):
        zeros = tirx.Broadcast(tirx.const(0, "float32"), LANES)
        T.buffer_store(sums, zeros, [row, tirx.Ramp(0, 1, LANES)])
    return sums


def _parts(rows: range, vectors: int = 1) -> Iterator[range]:
    """As few parts as registers allow, all about as long; a row has so many vectors of sums."""
    count = -(-len(rows) // ((MOST_SUMS + 1 - vectors) // vectors))
    size = -(-len(rows) // max(count, 1))
    return (rows[at : at + size] for at in range(0, len(rows), max(size, 1)))


def _pair(width: int, i: int, j: int) -> int:
    """Where the pair i > j is in a row of the result; 0 is the dense vector."""
    return width + i * (i - 1) // 2 + j


def _lanes(v: Any) -> Any:
    return _run(v * LANES, LANES)


def _two(pair: Any) -> Any:
    return _run(pair * 2, 2)


def _run(first: Any, count: int) -> Any:
    stride = 1 if isinstance(first, int) else tirx.const(1, first.ty.dtype)
    return tirx.Ramp(first, stride, count)


def _up(number: int, to: int) -> int:
    return -(-number // to) * to


def _local(shape: tuple[int, ...], dtype: str) -> Any:
    return T.alloc_buffer(shape, dtype, scope="local")


def _cleared(shape: tuple[int, ...], dtype: str) -> Any:
    """An array of zeros. TVM would shrink one to the places that it sees read or written."""
    array = _local(shape, dtype)
    rows = shape[0] if len(shape) > 1 else 1
    with T.serial(0, rows) as row, T.serial(0, shape[-1] // LANES) as v:
        zeros = tirx.Broadcast(tirx.const(0, dtype), LANES)
        T.buffer_store(array, zeros, [*([row] if len(shape) > 1 else []), _lanes(v)])
    return array


def _argument(name: str, shape: tuple[Any, ...]) -> Any:
    return T.match_buffer(T.arg(name, T.handle()), shape, "float32")


@contextmanager
def _kernel(name: str) -> Iterator[IRBuilder]:
    with IRBuilder() as builder, T.prim_func(is_private=True, s_tir=True):
        T.func_name(name)
        T.func_attr(SCHEDULED)
        yield builder


@contextmanager
def _samples(batch: Any) -> Iterator[Any]:
    """A parallel loop over tasks; yields the loop over a task's samples, for after its arrays."""
    tasks = tirx.ceildiv(batch, SAMPLES)
    with T.attr(0, "pragma_import_llvm", HELPERS), T.parallel(0, tasks) as task:

        @contextmanager
        def samples() -> Iterator[Any]:
            left = tirx.min(batch - task * SAMPLES, tirx.const(SAMPLES, "int64"))
            with T.serial(0, left) as sample:
                yield T.Bind(task * SAMPLES + sample)

        yield samples
