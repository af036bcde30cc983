# SPDX-License-Identifier: Apache-2.0
"""Kernels for the softmax loss over all rows of a table, in tiles of rows, and its cotangents.

No array has positions times rows elements: the largest score so far and the sum of exponentials are
carried from tile to tile (Milakov and Gimelshein 2018, https://arxiv.org/abs/1805.02867), and the
reverse pass computes the scores again.

A fixed number of parts of the table run in parallel. Their sums are added in order, so results do
not depend on the number of threads. Vectorized: the rows of a tile and, for dx, the columns.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

from tvm import tirx
from tvm.script.ir_builder import tirx as T
from tvm.tirx import PrimFunc

from sparsetrain.kernels.builder import buffer, extents, kernel
from sparsetrain.kernels.loops import column_tiles

PARTS = 64  # parts of the table
_LANES = 32  # rows of a tile
_ROWS = 8  # positions that share a pass: their scores are in registers
_GROUP = 8  # tiles per update of the largest score
_POSITIONS = 128  # positions per read of a tile
_LOW = -3.0e38  # below any score


def _wide(value: int) -> Any:
    return tirx.const(value, "int64")


class _Loss:
    """The arrays that both kernels read."""

    def __init__(self, width: int, dtype: str, id_dtype: str) -> None:
        self.width, self.dtype = width, dtype
        self.positions, self.rows = extents(2)
        self.x = buffer("x", (self.positions, width), dtype)
        self.table = buffer("table", (self.rows, width), dtype)
        self.items = buffer("items", (self.positions,), id_dtype)

    def number(self, value: float) -> Any:
        """Return a constant."""
        return tirx.const(value, self.dtype)

    def local(self, *shape: int) -> Any:
        """Allocate an array that is local to a thread."""
        return T.alloc_buffer(shape, self.dtype, scope="local")

    def each_group(self, part: Any, size: int, do: Callable[[Any], None]) -> None:
        """Loop over a part in steps of `size` rows; passes the first row of each step."""
        groups = T.Bind(tirx.ceildiv(self.rows, _wide(size * PARTS)))
        first = T.Bind(part * groups)
        left = tirx.max(tirx.ceildiv(self.rows, _wide(size)) - first, _wide(0))
        with T.serial(0, tirx.min(groups, left)) as number:
            do(T.Bind((first + number) * size))

    def transpose_(self, start: Any, count: int, into: Any) -> None:
        """Copy rows of the table from `start` on as columns; past the end, copy the last row."""
        with T.serial(0, _wide(count)) as j:
            row = T.Bind(tirx.min(start + j, self.rows - 1))
            with T.serial(0, _wide(self.width)) as d:
                T.buffer_store(into, self.table[row, d], [d, j])

    def at(self, first: Any, r: int) -> Any:
        """Return the number of a position, clamped to the last."""
        return tirx.min(first + r, self.positions - 1)

    def scores_(self, first: Any, tile: Any, column: Any, into: Any) -> None:
        """Compute the scores of some positions and the rows of a tile."""

        def number(r: int, d: Any) -> Any:
            return self.x[self.at(first, r), d]

        def row(d: Any, j: Any) -> Any:
            return tile[d, column + j]

        multiply_(self.width, number, row, into, _LANES, self.number(0))

    def lanes(self) -> Any:
        """Loop over the rows of a tile, vectorized."""
        return T.vectorized(0, _wide(_LANES))


def multiply_(
    steps: int,
    left: Callable[[int, Any], Any],
    right: Callable[[Any, Any], Any],
    into: Any,
    lanes: int,
    zero: Any,
) -> None:
    """Compute ``into[r, j] = sum over k of left(r, k) right(k, j)``, `_ROWS` x `lanes`."""
    for r in range(_ROWS):
        with T.vectorized(0, _wide(lanes)) as j:
            T.buffer_store(into, zero, [r, j])
    with T.serial(0, _wide(steps)) as k:
        for r in range(_ROWS):
            factor = T.Bind(left(r, k))
            with T.vectorized(0, _wide(lanes)) as j:
                T.buffer_store(into, into[r, j] + factor * right(k, j), [r, j])


def _fold_(of: _Loss, scores: Any, tops: Any, totals: Any, n: Any, r: Any) -> None:
    """Update the largest score and the sum of a position from row r of a group's scores."""
    top, total = of.local(_LANES), of.local(_LANES)
    with of.lanes() as j:
        T.buffer_store(top, tops[n, j], [j])
    for g in range(_GROUP):
        with of.lanes() as j:
            T.buffer_store(top, tirx.max(top[j], scores[g * _ROWS + r, j]), [j])
    with of.lanes() as j:
        T.buffer_store(total, totals[n, j] * tirx.exp(tops[n, j] - top[j]), [j])
    for g in range(_GROUP):
        with of.lanes() as j:
            power = tirx.exp(scores[g * _ROWS + r, j] - top[j])
            T.buffer_store(total, total[j] + power, [j])
    for kept, value in ((tops, top), (totals, total)):
        with of.lanes() as j:
            T.buffer_store(kept, value[j], [n, j])


def _join_parts_(of: _Loss, sums: Any, loss: Any, logarithms: Any) -> None:
    """Compute the loss of each position from the largest scores and sums of all parts."""
    with T.parallel(0, of.positions) as n:
        found = of.local(3)  # the largest score, the sum, the score of the item
        T.buffer_store(found, of.number(_LOW), [0])
        for place in (1, 2):
            T.buffer_store(found, of.number(0), [place])
        with T.serial(0, _wide(PARTS)) as part:
            T.buffer_store(found, tirx.max(found[0], sums[part, n, 0]), [0])
        with T.serial(0, _wide(PARTS)) as part:
            total = sums[part, n, 1] * tirx.exp(sums[part, n, 0] - found[0])
            T.buffer_store(found, found[1] + total, [1])
        item = T.Bind(tirx.Cast("int64", of.items[n]))
        with T.serial(0, _wide(of.width)) as d:
            T.buffer_store(found, found[2] + of.x[n, d] * of.table[item, d], [2])
        logarithm = T.Bind(tirx.log(found[1]) + found[0])
        T.buffer_store(logarithms, logarithm, [n])
        T.buffer_store(loss, logarithm - found[2], [n])


@cache
def tiled_loss_kernel(width: int, dtype: str, id_dtype: str) -> PrimFunc:
    """Compute ``loss[n] = log sum_v exp(x[n] . table[v]) - x[n] . table[y[n]]``, and logarithms.

    Arguments: x (N, D), table (V, D), y (N,), loss (N,), logarithms (N,), and as scratch the
    largest score and the sum of exponentials of each part, (PARTS, N, 2).
    """
    with kernel("tiled_softmax_loss") as built:
        of = _Loss(width, dtype, id_dtype)
        loss, logarithms = (buffer(n, (of.positions,), dtype) for n in ("loss", "logarithms"))
        sums = buffer("sums", (PARTS, of.positions, 2), dtype)
        low, size = of.number(_LOW), _LANES * _GROUP

        with T.parallel(0, _wide(PARTS)) as part:
            tile, scores = of.local(width, size), of.local(_GROUP * _ROWS, _LANES)
            tops, totals = (of.local(_POSITIONS, _LANES) for _ in range(2))
            product = of.local(_ROWS, _LANES)

            def of_group(start: Any, begin: Any) -> None:
                of.transpose_(start, size, tile)
                with T.serial(0, _wide(_POSITIONS // _ROWS)) as block:
                    first = T.Bind(begin + block * _ROWS)
                    with T.If(first < of.positions), T.Then():
                        with T.serial(0, _wide(_GROUP)) as g:
                            of.scores_(first, tile, g * _LANES, product)
                            for r in range(_ROWS):
                                with of.lanes() as j:
                                    inside = start + g * _LANES + j < of.rows
                                    score = tirx.Select(inside, product[r, j], low)
                                    T.buffer_store(scores, score, [g * _ROWS + r, j])
                        with T.serial(0, _wide(_ROWS)) as r:
                            _fold_(of, scores, tops, totals, T.Bind(block * _ROWS + r), r)

            with T.serial(0, tirx.ceildiv(of.positions, _wide(_POSITIONS))) as chunk:
                begin = T.Bind(chunk * _POSITIONS)
                with T.serial(0, _wide(_POSITIONS)) as n:
                    with of.lanes() as j:
                        T.buffer_store(tops, low, [n, j])
                    with of.lanes() as j:
                        T.buffer_store(totals, of.number(0), [n, j])
                of.each_group(part, size, lambda start: of_group(start, begin))
                with T.serial(0, tirx.min(of.positions - begin, _wide(_POSITIONS))) as n:
                    pair = of.local(2)
                    T.buffer_store(pair, low, [0])
                    T.buffer_store(pair, of.number(0), [1])
                    with T.serial(0, _wide(_LANES)) as j:
                        T.buffer_store(pair, tirx.max(pair[0], tops[n, j]), [0])
                    with T.serial(0, _wide(_LANES)) as j:
                        part_of = totals[n, j] * tirx.exp(tops[n, j] - pair[0])
                        T.buffer_store(pair, pair[1] + part_of, [1])
                    for place in range(2):
                        T.buffer_store(sums, pair[place], [part, begin + n, place])

        _join_parts_(of, sums, loss, logarithms)
    return built.get()


def _slopes_of_scores_(
    of: _Loss, logarithms: Any, cotangent: Any, start: Any, first: Any, weights: Any
) -> None:
    """Turn scores (_ROWS, _LANES) into cotangents, with 0 past the last position and row."""
    for r in range(_ROWS):
        n = T.Bind(of.at(first, r))
        item = T.Bind(tirx.Cast("int64", of.items[n]))
        each = tirx.Select(first + r < of.positions, cotangent[n], of.number(0))
        factor, logarithm = T.Bind(each), T.Bind(logarithms[n])
        with of.lanes() as j:
            power = tirx.exp(weights[r, j] - logarithm)
            one = tirx.Select(start + j == item, of.number(1), of.number(0))
            inside = start + j < of.rows
            value = tirx.Select(inside, (power - one) * factor, of.number(0))
            T.buffer_store(weights, value, [r, j])


def _add_parts_(of: _Loss, sums: Any, dx: Any) -> None:
    """Add the parts of dx in order."""
    with T.parallel(0, of.positions) as n:
        with T.serial(0, _wide(of.width)) as d:
            T.buffer_store(dx, of.number(0), [n, d])
        with T.serial(0, _wide(PARTS)) as part, T.serial(0, _wide(of.width)) as d:
            T.buffer_store(dx, dx[n, d] + sums[part, n, d], [n, d])


@cache
def tiled_cotangent_kernel(width: int, dtype: str, id_dtype: str) -> PrimFunc:
    """Compute the cotangents of x and of the table, both dense.

    Arguments: x (N, D), table (V, D), y (N,), logarithms (N,), cotangent (N,), dx (N, D), dtable
    (V, D), and as scratch (PARTS, N, D) each part's share of dx.
    """
    with kernel("tiled_softmax_cotangent") as built:
        of = _Loss(width, dtype, id_dtype)
        names = ("logarithms", "cotangent")
        logarithms, cotangent = (buffer(n, (of.positions,), dtype) for n in names)
        dx = buffer("dx", (of.positions, width), dtype)
        dtable = buffer("dtable", (of.rows, width), dtype)
        sums = buffer("sums", (PARTS, of.positions, width), dtype)
        tiles, lanes = column_tiles(width, _LANES)

        with T.parallel(0, _wide(PARTS)) as part:
            tile, slopes = of.local(width, _LANES), of.local(width, _LANES)
            weights, product = of.local(_ROWS, _LANES), of.local(_ROWS, lanes)

            def of_tile(start: Any) -> None:
                of.transpose_(start, _LANES, tile)
                with T.serial(0, _wide(width)) as d, of.lanes() as j:
                    T.buffer_store(slopes, of.number(0), [d, j])
                with T.serial(0, tirx.ceildiv(of.positions, _wide(_ROWS))) as block:
                    of_positions(start, T.Bind(block * _ROWS))
                left = tirx.min(of.rows - start, _wide(_LANES))
                with T.serial(0, left) as j, T.serial(0, _wide(width)) as d:
                    T.buffer_store(dtable, slopes[d, j], [start + j, d])

            def of_positions(start: Any, first: Any) -> None:
                of.scores_(first, tile, _wide(0), weights)
                _slopes_of_scores_(of, logarithms, cotangent, start, first, weights)
                with T.serial(0, _wide(width)) as d:
                    numbers = [T.Bind(of.x[of.at(first, r), d]) for r in range(_ROWS)]
                    with of.lanes() as j:
                        total = slopes[d, j]
                        for r in range(_ROWS):
                            total = total + numbers[r] * weights[r, j]
                        T.buffer_store(slopes, total, [d, j])
                with T.serial(0, _wide(tiles)) as t:
                    multiply_(
                        _LANES,
                        lambda r, k: weights[r, k],
                        lambda k, j: of.table[tirx.min(start + k, of.rows - 1), t * lanes + j],
                        product,
                        lanes,
                        of.number(0),
                    )
                    for r in range(_ROWS):
                        is_one = T.If(first + r < of.positions)
                        with is_one, T.Then(), T.vectorized(0, _wide(lanes)) as j:
                            place = [part, first + r, t * lanes + j]
                            T.buffer_store(sums, sums[tuple(place)] + product[r, j], place)

            with T.serial(0, of.positions) as n, T.serial(0, _wide(width)) as d:
                T.buffer_store(sums, of.number(0), [part, n, d])
            of.each_group(part, _LANES, of_tile)

        _add_parts_(of, sums, dx)
    return built.get()
