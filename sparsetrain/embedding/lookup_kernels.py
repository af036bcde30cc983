# SPDX-License-Identifier: Apache-2.0
"""Kernels for embedding lookups, with one id or a bag of ids per output row.

Preconditions (checked where data enters): ids are in [0, V), offsets begin with 0, never decrease,
and end with N. Ids that a model computes cannot be checked there: an id outside the table reads as
NaN, never out of bounds, and its gradient is refused when rows are coalesced. Row numbers become
int64 before they are multiplied by a width, because V * D may exceed 2**31. A table may be stored
in half precision or in rows of int8: an element is converted to float32 in registers when it is
read.

Output rows run in parallel, each with one writer that sums ids first to last, so the bits do not
depend on the number of threads. The columns of a row are vectorized. All kernels but
`lookup_kernel` are written with `Loops`, so backends share them.

A bag's number is feature-major, ``bag = f * B + b``, because each feature has its own ids and
offsets; its result is at ``[b, f]``, as the interaction expects.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, reduce
from typing import Any

from tvm import tirx
from tvm.script.ir_builder import tirx as T
from tvm.tirx import PrimFunc, const

from sparsetrain.kernels.builder import Prefetch, buffer, extents, kernel, line_starts
from sparsetrain.kernels.loops import HOST_LOOPS, Loops, Number, column_tiles, store_vector
from sparsetrain.kernels.table_formats import format_of

# The rows of a large table are not in a cache, so a lookup prefetches the first cache lines of
# later rows into L1, with at most `LINES` lines in flight.
ROW_LINES, LINES = 4, 64
LEAST_AHEAD, MOST_AHEAD = 16, 64  # number of ids between a row's prefetch and its read


@cache
def lookup_kernel(width: int, dtype: str, id_dtype: str) -> PrimFunc:
    """Return the kernel ``out[n] = table[ids[n]]``; `dtype` is the table's."""
    tiles, lanes = column_tiles(width)
    stored = format_of(dtype)
    with kernel("lookup") as built:
        height, count = extents(2)
        table = buffer("table", (height, stored.extent(width)), dtype)
        ids = buffer("ids", (count,), id_dtype)
        out = buffer("out", (count, width), stored.computed)
        with T.parallel(0, count) as n:
            _prefetch_later_row(table, ids, n)
            row = T.Bind(_inside(ids[n], height))
            there = tirx.Cast("int64", ids[n]) == row
            with T.serial(0, tiles) as t, T.vectorized(0, lanes) as d:
                value = stored.element(table, row, t * lanes + d)
                nan = const(float("nan"), value.ty.dtype)
                T.buffer_store(out, tirx.Select(there, value, nan), [n, t * lanes + d])
    return built.get()


def _prefetch_later_row(table: Any, ids: Any, n: Any) -> None:
    """Prefetch the row of a later id."""
    columns = line_starts(table, ROW_LINES)
    rows = max(LEAST_AHEAD, min(MOST_AHEAD, LINES // len(columns)))
    later = T.Bind(_inside(ids[tirx.min(n + rows, ids.shape[0] - 1)], table.shape[0]))
    for column in columns:
        Prefetch(write=False, near=3).line(table, [later, column])


def _inside(index: Any, rows: Any) -> Any:
    """Return `index` clamped to the table; this changes it only if it is out of range."""
    wide = tirx.Cast("int64", index)
    return tirx.max(tirx.min(wide, rows - 1), const(0, "int64"))


@cache
def plain_lookup_kernel(width: int, dtype: str, id_dtype: str, loops: Loops) -> PrimFunc:
    """Return `lookup_kernel` without prefetching, written with `loops`."""
    stored = format_of(dtype)
    computed = stored.computed
    with kernel("lookup") as built:
        height, count = extents(2)
        table = buffer("table", (height, stored.extent(width)), dtype)
        ids = buffer("ids", (count,), id_dtype)
        out = buffer("out", (count, width), computed)
        with loops.each_vector(count, width, computed) as (n, column, lanes):
            read_row(table, ids[n], column, lambda row: store_vector(out, [n, column], lanes, row))
    return built.get()


@cache
def bag_kernel(
    width: int,
    dtype: str,
    id_dtype: str,
    features: int,
    mean: bool | tuple[bool, ...],
    weighted: bool,
    loops: Loops = HOST_LOOPS,
) -> PrimFunc:
    """Compute ``out[b, f] = sum of weights[n] table[ids[n]]`` over bag ``f B + b``; 0 if empty.

    `mean` says whether sums are divided by lengths, for all features or for each.
    """
    stored = format_of(dtype)
    computed = stored.computed
    with kernel("embedding_bag") as built:
        height, count, given, batch = extents(4)
        table = buffer("table", (height, stored.extent(width)), dtype)
        ids = buffer("ids", (count,), id_dtype)
        offsets = buffer("offsets", (batch * features + 1,), "int64")
        weights = buffer("weights", (given,), computed if weighted else "int64")
        out = buffer("out", (batch, features, width), computed)
        with loops.each_vector(batch * features, width, computed) as (bag, column, lanes):
            first = T.Bind(offsets[bag])
            length = T.Bind(offsets[bag + 1] - first)
            total = T.alloc_local((lanes,), computed)
            store_vector(total, [0], lanes, lambda lane: const(0, computed))
            with T.serial(0, length) as n:
                weight = weights[first + n] if weighted else None
                read_row(table, ids[first + n], column, _adding_to(total, weight))
            share = tirx.Cast(computed, tirx.max(length, const(1, "int64")))
            divisor = T.Bind(_divisor(mean, tirx.floordiv(bag, batch), share, computed))
            place = [tirx.floormod(bag, batch), tirx.floordiv(bag, batch), column]
            store_vector(out, place, lanes, lambda lane: total[lane] / divisor)
    return built.get()


def _divisor(mean: bool | tuple[bool, ...], feature: Any, length: Any, dtype: str) -> Any:
    """Return the length of a bag if its feature is averaged, else 1."""
    one = const(1, dtype)
    if isinstance(mean, bool):
        return length if mean else one
    averaged = [feature == const(f, "int64") for f, is_mean in enumerate(mean) if is_mean]
    return tirx.Select(reduce(tirx.Or, averaged), length, one)


# Lane -> number.
Vector = Callable[[Any], Any]


def read_row(table: Any, index: Any, column: Any, use: Callable[[Vector], None]) -> None:
    """Pass a vector of a table's row to `use`, or NaN if there is no such row."""
    stored, row = format_of(str(table.dtype)), T.Bind(tirx.Cast("int64", index))
    with T.If(tirx.And(row >= 0, row < table.shape[0])):
        with T.Then():
            use(lambda lane: stored.element(table, row, column + lane))
        with T.Else():
            use(lambda lane: const(float("nan"), stored.computed))


def _adding_to(total: Any, weight: Any) -> Callable[[Vector], None]:
    """Return a function that adds a vector, times its weight if there is one."""

    def add(row: Vector) -> None:
        def sum_of(lane: Any) -> Any:
            return total[lane] + (row(lane) if weight is None else row(lane) * weight)

        store_vector(total, [0], int(total.shape[0]), sum_of)

    return add


@cache
def bag_source_kernel(features: int, id_dtype: str, loops: Loops = HOST_LOOPS) -> PrimFunc:
    """Compute for each id the row of its bag in the (B * F, D) cotangent."""
    with kernel("bag_source") as built:
        count, edges = extents(2)
        offsets = buffer("offsets", (edges,), "int64")
        buffer("ids", (count,), id_dtype)  # only its length is used
        out = buffer("out", (count,), "int32")
        with loops.each(edges - 1) as bag:
            batch = T.Bind(tirx.floordiv(edges - 1, features))
            row = tirx.floormod(bag, batch) * features + tirx.floordiv(bag, batch)
            with T.serial(0, offsets[bag + 1] - offsets[bag]) as n:
                T.buffer_store(out, tirx.Cast("int32", row), [offsets[bag] + n])
    return built.get()


@cache
def bag_mean_cotangent_kernel(
    width: int,
    dtype: str,
    features: int,
    mean: bool | tuple[bool, ...],
    loops: Loops = HOST_LOOPS,
) -> PrimFunc:
    """Divide the cotangent (B, F, D) of a mean by the length of each averaged bag."""
    with kernel("bag_mean_cotangent") as built:
        (batch,) = extents(1)
        cotangent = buffer("cotangent", (batch, features, width), dtype)
        offsets = buffer("offsets", (batch * features + 1,), "int64")
        out = buffer("out", (batch, features, width), dtype)
        with loops.each_vector(batch * features, width, dtype) as (row, column, lanes):
            b, f = tirx.floordiv(row, features), tirx.floormod(row, features)
            bag = T.Bind(f * batch + b)
            length = T.Bind(tirx.max(offsets[bag + 1] - offsets[bag], const(1, "int64")))
            divisor = _divisor(mean, f, tirx.Cast(dtype, length), dtype)
            place = [b, f, column]
            store_vector(out, place, lanes, lambda lane: cotangent[b, f, column + lane] / divisor)
    return built.get()


@cache
def weighted_values_kernel(width: int, dtype: str, loops: Loops = HOST_LOOPS) -> PrimFunc:
    """Multiply each id's weight by the cotangent of its bag: (N, D)."""
    with kernel("weighted_values") as built:
        count, bags = extents(2)
        cotangent = buffer("cotangent", (bags, width), dtype)
        source = buffer("source", (count,), "int32")
        weights = buffer("weights", (count,), dtype)
        out = buffer("out", (count, width), dtype)
        with loops.each_vector(count, width, dtype) as (n, column, lanes):
            bag = tirx.Cast("int64", source[n])
            store_vector(
                out, [n, column], lanes, lambda lane: weights[n] * cotangent[bag, column + lane]
            )
    return built.get()


@cache
def weight_cotangent_kernel(
    width: int, dtype: str, id_dtype: str, loops: Loops = HOST_LOOPS
) -> PrimFunc:
    """Compute for each id the dot product of its table row and its bag's cotangent: (N,)."""
    stored = format_of(dtype)
    computed = stored.computed
    with kernel("weight_cotangent") as built:
        height, count, bags = extents(3)
        table = buffer("table", (height, stored.extent(width)), dtype)
        ids = buffer("ids", (count,), id_dtype)
        cotangent = buffer("cotangent", (bags, width), computed)
        source = buffer("source", (count,), "int32")
        out = buffer("out", (count,), computed)
        with loops.each(count) as n:
            row = T.Bind(_inside(ids[n], height))
            total = Number(computed)
            with T.serial(0, width) as d:
                value = stored.element(table, row, d)
                total.add(value * cotangent[tirx.Cast("int64", source[n]), d])
            T.buffer_store(out, total.now, [n])
    return built.get()
