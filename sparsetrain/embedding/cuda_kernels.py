# SPDX-License-Identifier: Apache-2.0
"""The CUDA kernels of embedding lookups; `kernels` holds the CPU's, with the same arguments.

Preconditions, meanings and the order of every sum are those of the CPU's kernels, so results have
the same bits but for fused multiplications. What is parallel: vectors of four columns of all rows,
in one long row of threads, so that a width of 16 fills a warp with eight rows as a width of 128
fills it with one. Loads and stores are 16 bytes where the width allows it, side by side.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tvm import tirx
from tvm.script.ir_builder import tirx as T
from tvm.tirx import PrimFunc

from sparsetrain.kernels.builder import buffer, extents, kernel
from sparsetrain.sparse_tensor.cuda.parts import Number, each_of, each_vector, store_vector


def lookup_kernel(width: int, dtype: str, id_dtype: str) -> PrimFunc:
    """``out[n] = table[ids[n]]``; an id outside the table reads as NaN."""
    with kernel("lookup") as built:
        height, count = extents(2)
        table = buffer("table", (height, width), dtype)
        ids = buffer("ids", (count,), id_dtype)
        out = buffer("out", (count, width), dtype)
        with each_vector(count, width, dtype) as (n, column, lanes):
            _read(table, ids[n], column, lambda row: store_vector(out, [n, column], lanes, row))
    return built.get()


def bag_kernel(
    width: int, dtype: str, id_dtype: str, features: int, mean: bool, weighted: bool
) -> PrimFunc:
    """``out[b, f] = sum of weights[n] table[ids[n]]`` over bag ``f B + b``; an empty bag is 0."""
    with kernel("embedding_bag") as built:
        height, count, given, batch = extents(4)
        table = buffer("table", (height, width), dtype)
        ids = buffer("ids", (count,), id_dtype)
        offsets = buffer("offsets", (batch * features + 1,), "int64")
        weights = buffer("weights", (given,), dtype if weighted else "int64")
        out = buffer("out", (batch, features, width), dtype)
        with each_vector(batch * features, width, dtype) as (bag, column, lanes):
            first = T.Bind(offsets[bag])
            length = T.Bind(offsets[bag + 1] - first)
            total = T.alloc_local((lanes,), dtype)
            store_vector(total, [0], lanes, lambda lane: tirx.const(0, dtype))
            with T.serial(0, length) as n:
                weight = weights[first + n] if weighted else None
                _read(table, ids[first + n], column, _adding_to(total, weight))
            share = tirx.Cast(dtype, tirx.max(length, tirx.const(1, "int64")))
            divisor = T.Bind(share if mean else tirx.const(1, dtype))
            place = [tirx.floormod(bag, batch), tirx.floordiv(bag, batch), column]
            store_vector(out, place, lanes, lambda lane: total[lane] / divisor)
    return built.get()


# From a lane to a number.
Vector = Callable[[Any], Any]


def _read(table: Any, index: Any, column: Any, use: Callable[[Vector], None]) -> None:
    """Let `use` have a vector of a table's row, NaN if there is no such row."""
    row = T.Bind(tirx.Cast("int64", index))
    with T.If(tirx.And(row >= 0, row < table.shape[0])):
        with T.Then():
            use(lambda lane: table[row, column + lane])
        with T.Else():
            use(lambda lane: tirx.const(float("nan"), table.dtype))


def _adding_to(total: Any, weight: Any) -> Callable[[Vector], None]:
    """Adds a vector, times its weight if there is one."""

    def add(row: Vector) -> None:
        def sum_of(lane: Any) -> Any:
            return total[lane] + (row(lane) if weight is None else row(lane) * weight)

        store_vector(total, [0], int(total.shape[0]), sum_of)

    return add


def bag_source_kernel(features: int, id_dtype: str) -> PrimFunc:
    """For each id, the row of the (B * F, D) cotangent that its bag's result has."""
    with kernel("bag_source") as built:
        count, edges = extents(2)
        offsets = buffer("offsets", (edges,), "int64")
        buffer("ids", (count,), id_dtype)  # only its length is read
        out = buffer("out", (count,), "int32")
        with each_of(edges - 1) as bag:
            batch = T.Bind(tirx.floordiv(edges - 1, features))
            row = tirx.floormod(bag, batch) * features + tirx.floordiv(bag, batch)
            with T.serial(0, offsets[bag + 1] - offsets[bag]) as n:
                T.buffer_store(out, tirx.Cast("int32", row), [offsets[bag] + n])
    return built.get()


def bag_mean_cotangent_kernel(width: int, dtype: str, features: int) -> PrimFunc:
    """The cotangent (B, F, D) of a mean, divided by the length of each bag."""
    with kernel("bag_mean_cotangent") as built:
        (batch,) = extents(1)
        cotangent = buffer("cotangent", (batch, features, width), dtype)
        offsets = buffer("offsets", (batch * features + 1,), "int64")
        out = buffer("out", (batch, features, width), dtype)
        with each_vector(batch * features, width, dtype) as (row, column, lanes):
            b, f = tirx.floordiv(row, features), tirx.floormod(row, features)
            bag = T.Bind(f * batch + b)
            length = T.Bind(tirx.max(offsets[bag + 1] - offsets[bag], tirx.const(1, "int64")))
            divisor = tirx.Cast(dtype, length)
            place = [b, f, column]
            store_vector(out, place, lanes, lambda lane: cotangent[b, f, column + lane] / divisor)
    return built.get()


def weighted_values_kernel(width: int, dtype: str) -> PrimFunc:
    """For each id, its weight times the cotangent of its bag: (N, D)."""
    with kernel("weighted_values") as built:
        count, bags = extents(2)
        cotangent = buffer("cotangent", (bags, width), dtype)
        source = buffer("source", (count,), "int32")
        weights = buffer("weights", (count,), dtype)
        out = buffer("out", (count, width), dtype)
        with each_vector(count, width, dtype) as (n, column, lanes):
            bag = tirx.Cast("int64", source[n])
            store_vector(
                out, [n, column], lanes, lambda lane: weights[n] * cotangent[bag, column + lane]
            )
    return built.get()


def weight_cotangent_kernel(width: int, dtype: str, id_dtype: str) -> PrimFunc:
    """For each id, the dot product of its table row and the cotangent of its bag: (N,)."""
    with kernel("weight_cotangent") as built:
        height, count, bags = extents(3)
        table = buffer("table", (height, width), dtype)
        ids = buffer("ids", (count,), id_dtype)
        cotangent = buffer("cotangent", (bags, width), dtype)
        source = buffer("source", (count,), "int32")
        out = buffer("out", (count,), dtype)
        with each_of(count) as n:
            inside = tirx.min(tirx.Cast("int64", ids[n]), height - 1)
            row = T.Bind(tirx.max(inside, tirx.const(0, "int64")))
            total = Number(dtype)
            with T.serial(0, width) as d:
                total.add(table[row, d] * cotangent[tirx.Cast("int64", source[n]), d])
            T.buffer_store(out, total.now, [n])
    return built.get()
