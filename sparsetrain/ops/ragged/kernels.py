# SPDX-License-Identifier: Apache-2.0
"""CPU kernels over ragged sequences: N tokens in B rows, where row b ends before token ``ends[b]``.

Preconditions (checked where data enters): `ends` rises, and its last entry is N. No kernel reads or
writes padding, for there is none.

What is parallel: rows. Every element has one writer, and sums run from the first token to the last,
so the bits do not depend on the number of threads. What is vectorised: the columns of a token.
"""

from __future__ import annotations

from functools import cache

from tvm.script import tirx as T
from tvm.tirx import PrimFunc

from sparsetrain.kernels import builder
from sparsetrain.kernels.builder import SCHEDULED
from sparsetrain.sparse_tensor.kernels import column_tiles


@cache
def sum_kernel(width: int, dtype: str) -> PrimFunc:
    """``out[b] = sum of values[n]`` over the tokens of row b."""
    tiles, lanes = column_tiles(width)

    @builder.prim_func(s_tir=True, private=True)
    def ragged_sum(values: T.handle, ends: T.handle, out: T.handle):
        T.func_attr(SCHEDULED)
        N, B = T.int64(), T.int64()
        Values = T.match_buffer(values, (N, width), dtype)
        Ends = T.match_buffer(ends, (B,), "int64")
        Out = T.match_buffer(out, (B, width), dtype)
        for b in T.parallel(B):
            first = T.if_then_else(b > 0, Ends[b - 1], T.int64(0))
            count = Ends[b] - first
            for t in T.serial(tiles):
                total = T.alloc_buffer((lanes,), dtype, scope="local")
                for d in T.vectorized(lanes):
                    total[d] = T.cast(0, dtype)
                for n in T.serial(count):
                    for d in T.vectorized(lanes):
                        total[d] = total[d] + Values[first + n, t * lanes + d]
                for d in T.vectorized(lanes):
                    Out[b, t * lanes + d] = total[d]

    return ragged_sum


@cache
def expand_kernel(width: int, dtype: str, like_width: int, like_dtype: str) -> PrimFunc:
    """``out[n] = rows[b]`` for each token n of row b."""
    tiles, lanes = column_tiles(width)

    @builder.prim_func(s_tir=True, private=True)
    def ragged_expand(rows: T.handle, ends: T.handle, like: T.handle, out: T.handle):
        T.func_attr(SCHEDULED)
        N, B = T.int64(), T.int64()
        Rows = T.match_buffer(rows, (B, width), dtype)
        Ends = T.match_buffer(ends, (B,), "int64")
        T.match_buffer(like, (N, like_width), like_dtype)  # only its length is read
        Out = T.match_buffer(out, (N, width), dtype)
        for b in T.parallel(B):
            first = T.if_then_else(b > 0, Ends[b - 1], T.int64(0))
            for n in T.serial(Ends[b] - first):
                for t in T.serial(tiles):
                    for d in T.vectorized(lanes):
                        Out[first + n, t * lanes + d] = Rows[b, t * lanes + d]

    return ragged_expand


@cache
def positions_kernel(width: int, dtype: str) -> PrimFunc:
    """For each token of `width` numbers, its number within its row, from 0."""

    @builder.prim_func(s_tir=True, private=True)
    def ragged_positions(tokens: T.handle, ends: T.handle, out: T.handle):
        T.func_attr(SCHEDULED)
        N, B = T.int64(), T.int64()
        T.match_buffer(tokens, (N, width), dtype)  # only its length is read
        Ends = T.match_buffer(ends, (B,), "int64")
        Out = T.match_buffer(out, (N,), "int64")
        for b in T.parallel(B):
            first = T.if_then_else(b > 0, Ends[b - 1], T.int64(0))
            for n in T.serial(Ends[b] - first):
                Out[first + n] = n

    return ragged_positions


@cache
def max_kernel(width: int, dtype: str) -> PrimFunc:
    """``out[b] = max of values[n]`` over the tokens of row b, column by column; 0 without any."""
    tiles, lanes = column_tiles(width)

    @builder.prim_func(s_tir=True, private=True)
    def ragged_max(values: T.handle, ends: T.handle, out: T.handle):
        T.func_attr(SCHEDULED)
        N, B = T.int64(), T.int64()
        Values = T.match_buffer(values, (N, width), dtype)
        Ends = T.match_buffer(ends, (B,), "int64")
        Out = T.match_buffer(out, (B, width), dtype)
        for b in T.parallel(B):
            first = T.if_then_else(b > 0, Ends[b - 1], T.int64(0))
            count = Ends[b] - first
            for t in T.serial(tiles):
                top = T.alloc_buffer((lanes,), dtype, scope="local")
                for d in T.vectorized(lanes):
                    top[d] = T.if_then_else(
                        count > 0, Values[T.min(first, N - 1), t * lanes + d], T.cast(0, dtype)
                    )
                for n in T.serial(T.max(count - 1, T.int64(0))):
                    for d in T.vectorized(lanes):
                        # NaN stays, wherever it stands.
                        top[d] = T.Select(
                            Values[first + 1 + n, t * lanes + d] <= top[d],
                            top[d],
                            T.Select(
                                top[d] == top[d], Values[first + 1 + n, t * lanes + d], top[d]
                            ),
                        )
                for d in T.vectorized(lanes):
                    Out[b, t * lanes + d] = top[d]

    return ragged_max


@cache
def max_cotangent_kernel(width: int, dtype: str) -> PrimFunc:
    """The cotangent of `max_kernel`'s values: all of it goes to the first largest token."""

    @builder.prim_func(s_tir=True, private=True)
    def ragged_max_cotangent(
        values: T.handle, ends: T.handle, top: T.handle, cotangent: T.handle, out: T.handle
    ):
        T.func_attr(SCHEDULED)
        N, B = T.int64(), T.int64()
        Values = T.match_buffer(values, (N, width), dtype)
        Ends = T.match_buffer(ends, (B,), "int64")
        Top = T.match_buffer(top, (B, width), dtype)
        Cotangent = T.match_buffer(cotangent, (B, width), dtype)
        Out = T.match_buffer(out, (N, width), dtype)
        for b in T.parallel(B):
            first = T.if_then_else(b > 0, Ends[b - 1], T.int64(0))
            open_ = T.alloc_buffer((width,), "bool", scope="local")
            for d in T.serial(width):
                open_[d] = True
            for n in T.serial(Ends[b] - first):
                for d in T.serial(width):
                    here = T.And(open_[d], Values[first + n, d] == Top[b, d])
                    Out[first + n, d] = T.Select(here, Cotangent[b, d], T.cast(0, dtype))
                    open_[d] = T.And(open_[d], Values[first + n, d] != Top[b, d])

    return ragged_max_cotangent


@cache
def last_kernel(width: int, dtype: str) -> PrimFunc:
    """``out[b] =`` the last token of row b; 0 without any."""
    tiles, lanes = column_tiles(width)

    @builder.prim_func(s_tir=True, private=True)
    def ragged_last(values: T.handle, ends: T.handle, out: T.handle):
        T.func_attr(SCHEDULED)
        N, B = T.int64(), T.int64()
        Values = T.match_buffer(values, (N, width), dtype)
        Ends = T.match_buffer(ends, (B,), "int64")
        Out = T.match_buffer(out, (B, width), dtype)
        for b in T.parallel(B):
            first = T.if_then_else(b > 0, Ends[b - 1], T.int64(0))
            for t in T.serial(tiles):
                for d in T.vectorized(lanes):
                    Out[b, t * lanes + d] = T.if_then_else(
                        Ends[b] > first, Values[Ends[b] - 1, t * lanes + d], T.cast(0, dtype)
                    )

    return ragged_last


@cache
def last_cotangent_kernel(width: int, dtype: str) -> PrimFunc:
    """The cotangent of `last_kernel`'s values."""
    tiles, lanes = column_tiles(width)

    @builder.prim_func(s_tir=True, private=True)
    def ragged_last_cotangent(values: T.handle, ends: T.handle, cotangent: T.handle, out: T.handle):
        T.func_attr(SCHEDULED)
        N, B = T.int64(), T.int64()
        T.match_buffer(values, (N, width), dtype)  # only its length is read
        Ends = T.match_buffer(ends, (B,), "int64")
        Cotangent = T.match_buffer(cotangent, (B, width), dtype)
        Out = T.match_buffer(out, (N, width), dtype)
        for b in T.parallel(B):
            first = T.if_then_else(b > 0, Ends[b - 1], T.int64(0))
            for n in T.serial(Ends[b] - first):
                for t in T.serial(tiles):
                    for d in T.vectorized(lanes):
                        Out[first + n, t * lanes + d] = T.Select(
                            first + n == Ends[b] - 1,
                            Cotangent[b, t * lanes + d],
                            T.cast(0, dtype),
                        )

    return ragged_last_cotangent


@cache
def take_kernel(width: int, dtype: str) -> PrimFunc:
    """``out[m] = values[first token of the row + places[m]]``; NaN for a place outside the row."""
    tiles, lanes = column_tiles(width)

    @builder.prim_func(s_tir=True, private=True)
    def ragged_take(
        values: T.handle, ends: T.handle, places: T.handle, place_ends: T.handle, out: T.handle
    ):
        T.func_attr(SCHEDULED)
        N, B, M = T.int64(), T.int64(), T.int64()
        Values = T.match_buffer(values, (N, width), dtype)
        Ends = T.match_buffer(ends, (B,), "int64")
        Places = T.match_buffer(places, (M,), "int64")
        PlaceEnds = T.match_buffer(place_ends, (B,), "int64")
        Out = T.match_buffer(out, (M, width), dtype)
        for b in T.parallel(B):
            first = T.if_then_else(b > 0, Ends[b - 1], T.int64(0))
            begin = T.if_then_else(b > 0, PlaceEnds[b - 1], T.int64(0))
            for m in T.serial(PlaceEnds[b] - begin):
                place: T.let = Places[begin + m]
                inside: T.let = T.And(place >= 0, first + place < Ends[b])
                for t in T.serial(tiles):
                    for d in T.vectorized(lanes):
                        Out[begin + m, t * lanes + d] = T.if_then_else(
                            inside,
                            Values[first + place, t * lanes + d],
                            T.cast(T.float32("nan"), dtype),
                        )

    return ragged_take


@cache
def take_cotangent_kernel(width: int, dtype: str) -> PrimFunc:
    """The cotangent of `take_kernel`'s values; that of a token taken twice is the sum."""
    tiles, lanes = column_tiles(width)

    @builder.prim_func(s_tir=True, private=True)
    def ragged_take_cotangent(
        values: T.handle,
        ends: T.handle,
        places: T.handle,
        place_ends: T.handle,
        cotangent: T.handle,
        out: T.handle,
    ):
        T.func_attr(SCHEDULED)
        N, B, M = T.int64(), T.int64(), T.int64()
        T.match_buffer(values, (N, width), dtype)  # only its length is read
        Ends = T.match_buffer(ends, (B,), "int64")
        Places = T.match_buffer(places, (M,), "int64")
        PlaceEnds = T.match_buffer(place_ends, (B,), "int64")
        Cotangent = T.match_buffer(cotangent, (M, width), dtype)
        Out = T.match_buffer(out, (N, width), dtype)
        for b in T.parallel(B):
            first = T.if_then_else(b > 0, Ends[b - 1], T.int64(0))
            begin = T.if_then_else(b > 0, PlaceEnds[b - 1], T.int64(0))
            for n in T.serial(Ends[b] - first):
                for t in T.serial(tiles):
                    for d in T.vectorized(lanes):
                        Out[first + n, t * lanes + d] = T.cast(0, dtype)
            for m in T.serial(PlaceEnds[b] - begin):
                n = first + Places[begin + m]
                if n >= first and n < Ends[b]:
                    for t in T.serial(tiles):
                        for d in T.vectorized(lanes):
                            Out[n, t * lanes + d] = (
                                Out[n, t * lanes + d] + Cotangent[begin + m, t * lanes + d]
                            )

    return ragged_take_cotangent
