# SPDX-License-Identifier: Apache-2.0
"""Kernels over ragged sequences: N tokens in B rows, where row b ends before token ``ends[b]``.

Preconditions (checked where data enters): `ends` never decreases, and its last entry is N. There is
no padding.

Rows run in parallel; on a device, so do their columns. Every element has one writer, and sums run
from the first token to the last, so the bits do not depend on the number of threads. The columns of
a token are vectorized.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

from tvm import tirx
from tvm.script.ir_builder import tirx as T
from tvm.tirx import PrimFunc, const

from sparsetrain.kernels.builder import buffer, extents, kernel
from sparsetrain.kernels.loops import HOST_LOOPS, Columns, Loops


def first_of(ends: Any, b: Any) -> Any:
    """Return the first token of a row."""
    zero = const(0, "int64")
    return T.Bind(tirx.if_then_else(b > 0, ends[tirx.max(b - 1, zero)], zero))


@contextmanager
def each_row(ends: Any, loops: Loops = HOST_LOOPS) -> Iterator[tuple[Any, Any, Any]]:
    """Loop over rows in parallel; yields a row's number, first token and number of tokens."""
    with loops.each(ends.shape[0]) as b:
        first = first_of(ends, b)
        yield b, first, T.Bind(ends[b] - first)


@contextmanager
def _each_row_of(values: Any, ends: Any, loops: Loops) -> Iterator[tuple[Any, Any, Any, Columns]]:
    """As `each_row`, but also yield the loop over the columns of `values`."""
    with loops.each_row(ends.shape[0], int(values.shape[1])) as (b, columns):
        first = first_of(ends, b)
        yield b, first, T.Bind(ends[b] - first), columns


def put(array: Any, row: Any, column: Any, value: Any) -> None:
    """Write an element."""
    T.buffer_store(array, value, [row, column])


@contextmanager
def _kernel(name: str, width: int, dtype: str) -> Iterator[tuple[Any, Any, Any]]:
    """Begin a kernel with arguments tokens (N, width) and ends (B,); yields the kernel and both."""
    with kernel(name) as built:
        tokens, rows = extents(2)
        values = buffer("values", (tokens, width), dtype)
        yield built, values, buffer("ends", (rows,), "int64")


@cache
def sum_kernel(width: int, dtype: str, loops: Loops = HOST_LOOPS) -> PrimFunc:
    """Return the kernel ``out[b] = sum of values[n]`` over the tokens of row b."""
    with _kernel("ragged_sum", width, dtype) as (built, values, ends):
        out = buffer("out", (ends.shape[0], width), dtype)
        with _each_row_of(values, ends, loops) as (b, first, count, columns):
            columns(lambda c: put(out, b, c, const(0, dtype)))
            with T.serial(0, count) as n:
                columns(lambda c: put(out, b, c, out[b, c] + values[first + n, c]))
    return built.get()


@cache
def expand_kernel(
    width: int, dtype: str, like_width: int, like_dtype: str, loops: Loops = HOST_LOOPS
) -> PrimFunc:
    """Return the kernel ``out[n] = rows[b]`` for each token n of row b."""
    with kernel("ragged_expand") as built:
        tokens, count = extents(2)
        rows, ends = buffer("rows", (count, width), dtype), buffer("ends", (count,), "int64")
        buffer("like", (tokens, like_width), like_dtype)  # only its length is used
        out = buffer("out", (tokens, width), dtype)
        each = _each_row_of(rows, ends, loops)
        with each as (b, first, length, columns), T.serial(0, length) as n:
            columns(lambda c: put(out, first + n, c, rows[b, c]))
    return built.get()


@cache
def positions_kernel(width: int, dtype: str, loops: Loops = HOST_LOOPS) -> PrimFunc:
    """Return the kernel that writes each token's place within its row, from 0."""
    with _kernel("ragged_positions", width, dtype) as (built, values, ends):
        out = buffer("out", (values.shape[0],), "int64")
        with each_row(ends, loops) as (_, first, count), T.serial(0, count) as n:
            T.buffer_store(out, n, [first + n])
    return built.get()


@cache
def distances_kernel(width: int, dtype: str, loops: Loops = HOST_LOOPS) -> PrimFunc:
    """Return the kernel that writes how many tokens of its row come after each token."""
    with _kernel("ragged_distances", width, dtype) as (built, values, ends):
        out = buffer("out", (values.shape[0],), "int64")
        with each_row(ends, loops) as (_, first, count), T.serial(0, count) as n:
            T.buffer_store(out, count - 1 - n, [first + n])
    return built.get()


@cache
def max_kernel(width: int, dtype: str, loops: Loops = HOST_LOOPS) -> PrimFunc:
    """Return the kernel ``out[b] = max of values[n]`` over row b per column; 0 if it is empty."""
    with _kernel("ragged_max", width, dtype) as (built, values, ends):
        out = buffer("out", (ends.shape[0], width), dtype)

        def larger(value: Any, top: Any) -> Any:
            """Return the larger number; NaN if either is NaN."""
            return tirx.Select(value <= top, top, tirx.Select(top == top, value, top))

        with _each_row_of(values, ends, loops) as (b, first, count, columns):
            near = T.Bind(tirx.min(first, values.shape[0] - 1))
            start = count > 0, const(0, dtype)
            columns(
                lambda c: put(out, b, c, tirx.if_then_else(start[0], values[near, c], start[1]))
            )
            with T.serial(0, tirx.max(count - 1, const(0, "int64"))) as n:
                columns(lambda c: put(out, b, c, larger(values[first + 1 + n, c], out[b, c])))
    return built.get()


@cache
def max_cotangent_kernel(width: int, dtype: str, loops: Loops = HOST_LOOPS) -> PrimFunc:
    """Return the reverse kernel of `max_kernel`: the first largest token gets the cotangent."""
    with _kernel("ragged_max_cotangent", width, dtype) as (built, values, ends):
        top, cotangent = (buffer(n, (ends.shape[0], width), dtype) for n in ("top", "cotangent"))
        out = buffer("out", values.shape, dtype)
        with each_row(ends, loops) as (b, first, count):
            is_open = T.alloc_buffer((width,), "bool", scope="local")
            with T.serial(0, width) as d:
                T.buffer_store(is_open, const(True, "bool"), [d])
            with T.serial(0, count) as n, T.serial(0, width) as d:
                is_top = T.Bind(values[first + n, d] == top[b, d])
                here = tirx.And(is_open[d], is_top)
                put(out, first + n, d, tirx.Select(here, cotangent[b, d], const(0, dtype)))
                T.buffer_store(is_open, tirx.And(is_open[d], tirx.Not(is_top)), [d])
    return built.get()


@cache
def last_kernel(width: int, dtype: str, loops: Loops = HOST_LOOPS) -> PrimFunc:
    """Return the kernel that copies the last token of each row; 0 if it is empty."""
    with _kernel("ragged_last", width, dtype) as (built, values, ends):
        out = buffer("out", (ends.shape[0], width), dtype)
        with _each_row_of(values, ends, loops) as (b, _, count, columns):
            last, none = ends[b] - 1, const(0, dtype)
            columns(lambda c: put(out, b, c, tirx.if_then_else(count > 0, values[last, c], none)))
    return built.get()


@cache
def nonempty_kernel(width: int, dtype: str, loops: Loops = HOST_LOOPS) -> PrimFunc:
    """Return the kernel ``out[b] = values[b]``, with 0 for a row without tokens."""
    with _kernel("ragged_nonempty", width, dtype) as (built, values, ends):
        out = buffer("out", (ends.shape[0], width), dtype)
        with _each_row_of(values, ends, loops) as (b, _, count, columns):
            none = const(0, dtype)
            columns(lambda c: put(out, b, c, tirx.if_then_else(count > 0, values[b, c], none)))
    return built.get()


@cache
def last_cotangent_kernel(width: int, dtype: str, loops: Loops = HOST_LOOPS) -> PrimFunc:
    """Return the reverse kernel of `last_kernel`."""
    with _kernel("ragged_last_cotangent", width, dtype) as (built, values, ends):
        cotangent = buffer("cotangent", (ends.shape[0], width), dtype)
        out = buffer("out", values.shape, dtype)
        each = _each_row_of(values, ends, loops)
        with each as (b, first, count, columns), T.serial(0, count) as n:
            is_last, none = n == count - 1, const(0, dtype)
            columns(lambda c: put(out, first + n, c, tirx.Select(is_last, cotangent[b, c], none)))
    return built.get()


@contextmanager
def _each_place(places: Any, place_ends: Any, b: Any) -> Iterator[tuple[Any, Any]]:
    """Loop over the places of a row; yields a place's number among all places, and the place."""
    begin = first_of(place_ends, b)
    with T.serial(0, place_ends[b] - begin) as m:
        number = T.Bind(begin + m)
        yield number, T.Bind(places[number])


@cache
def take_kernel(width: int, dtype: str, loops: Loops = HOST_LOOPS) -> PrimFunc:
    """Return the kernel ``out[m] = values[row start + places[m]]``; NaN outside the row."""
    with _kernel("ragged_take", width, dtype) as (built, values, ends):
        (taken,) = extents(1)
        places = buffer("places", (taken,), "int64")
        place_ends = buffer("place_ends", ends.shape, "int64")
        out = buffer("out", (taken, width), dtype)
        each = _each_row_of(values, ends, loops)
        with each as (b, first, count, columns), _each_place(places, place_ends, b) as (m, place):
            inside, nan = tirx.And(place >= 0, place < count), const(float("nan"), dtype)
            columns(
                lambda c: put(out, m, c, tirx.if_then_else(inside, values[first + place, c], nan))
            )
    return built.get()


@cache
def take_cotangent_kernel(width: int, dtype: str, loops: Loops = HOST_LOOPS) -> PrimFunc:
    """Return the reverse kernel of `take_kernel`; a token taken twice gets the sum."""
    with _kernel("ragged_take_cotangent", width, dtype) as (built, values, ends):
        (taken,) = extents(1)
        places = buffer("places", (taken,), "int64")
        place_ends = buffer("place_ends", ends.shape, "int64")
        cotangent = buffer("cotangent", (taken, width), dtype)
        out = buffer("out", values.shape, dtype)
        with _each_row_of(values, ends, loops) as (b, first, count, columns):
            with T.serial(0, count) as n:
                columns(lambda c: put(out, first + n, c, const(0, dtype)))
            with (
                _each_place(places, place_ends, b) as (m, place),
                T.If(tirx.And(place >= 0, place < count)),
                T.Then(),
            ):
                n = T.Bind(first + place)
                columns(lambda c: put(out, n, c, out[n, c] + cotangent[m, c]))
    return built.get()


# Kernels by operator name.
KERNELS = {
    "ragged_sum": sum_kernel,
    "ragged_max": max_kernel,
    "ragged_last": last_kernel,
    "ragged_nonempty": nonempty_kernel,
    "ragged_expand": expand_kernel,
    "ragged_max_cotangent": max_cotangent_kernel,
    "ragged_last_cotangent": last_cotangent_kernel,
    "ragged_take": take_kernel,
    "ragged_take_cotangent": take_cotangent_kernel,
    "ragged_positions": positions_kernel,
    "ragged_distances": distances_kernel,
}
