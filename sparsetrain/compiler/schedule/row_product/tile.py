# SPDX-License-Identifier: Apache-2.0
"""Register tile of a product summed over rows, for one chunk of rows.

The sums continue from the previous chunk, so every element is summed over all rows in order. The
loop over rows has no branches. They are outside, and test whether the tile packs its panels, and
whether it is in the last, narrower panel.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

from tvm import tirx
from tvm.script.ir_builder import tirx as T

from sparsetrain.compiler.schedule.row_product.operand import (
    Chunk,
    Numbers,
    Part,
    Reading,
    Side,
    load,
    ramp,
    unrolled,
    wide,
    zeros,
)
from sparsetrain.compiler.schedule.row_product.tiling import Shape


class Block(NamedTuple):
    """Values shared by the tiles of a task.

    Parameters
    ----------
    shape : Shape
        Shape of the whole product.
    left, right : Side
        The operands.
    sums : Buffer
        The sums of all tiles, stored here between chunks.
    out : Buffer
        The result: (rows, columns), or (columns, rows) if `flipped`.
    flipped : bool
        Whether the result is transposed.
    panels : Expr
        The number of panels of the whole product.
    tile, panel : Expr
        The block's first tile and panel.
    owns_left, owns_right : Expr
        Whether this task writes the column sums of the operand; several tasks compute them.
    numbers : Numbers
        The task's stored integers (see `operand.Numbers`).
    """

    shape: Shape
    left: Side
    right: Side
    sums: Any
    out: Any
    flipped: bool
    panels: Any
    tile: Any
    panel: Any
    owns_left: Any
    owns_right: Any
    numbers: Numbers


def compute_tile(
    block: Block, chunk: Chunk, tile: Any, panel: Any, prefetch: Callable[[Any], None]
) -> None:
    """Add the products of a chunk to a tile of the block; call `prefetch` before every piece."""
    shape, (rows, columns) = (
        block.shape,
        (side.source.shape[1] for side in (block.left, block.right)),
    )
    row = block.numbers.hold(tirx.min((block.tile + tile) * shape.height, rows - shape.height))
    begin, is_cut = row, shape.window > shape.height
    if is_cut:
        begin = block.numbers.hold(tirx.min(row, rows - shape.window))

    def of(vectors: int) -> None:
        last = columns - vectors * shape.lanes
        column = block.numbers.hold(tirx.min((block.panel + panel) * shape.width, last))
        corner = _Corner(row, column, begin, row - begin if is_cut else 0)
        _Tile(block, chunk, (tile, panel), corner, vectors, prefetch).compute()

    if shape.last_vectors == shape.vectors:
        of(shape.vectors)
    else:
        is_last = block.panel + panel == block.panels - 1
        _either(is_last, lambda: of(shape.last_vectors), lambda: of(shape.vectors))


class _Corner(NamedTuple):
    """A tile's first row and column; its window of the left operand begins `shift` rows earlier."""

    row: Any
    column: Any
    begin: Any
    shift: Any


class _Tile:
    def __init__(
        self,
        block: Block,
        chunk: Chunk,
        number: tuple[Any, Any],
        corner: _Corner,
        vectors: int,
        prefetch: Callable[[Any], None],
    ) -> None:
        self.prefetch = prefetch
        self.block, self.chunk, self.number, self.corner = block, chunk, number, corner
        shape = block.shape
        self.lanes, self.height, self.vectors = shape.lanes, shape.height, vectors
        tile, panel = number
        self.stored = (panel * shape.most[0] + tile) * (shape.height * shape.width)
        self.dtype = block.left.dtype
        self.own = T.alloc_buffer((shape.height * vectors * shape.lanes,), self.dtype)

    def compute(self) -> None:
        """Load the tile's sums, add the products of the chunk, and store the sums."""
        shape = self.block.shape
        _either(self.chunk.is_first, self._start, self._take_up)
        with T.serial(wide(0), wide(shape.pieces)) as piece:
            self.prefetch(piece)
            self._add(piece)
        _either(self.chunk.is_last, self._store, self._put_down)

    def _add(self, piece: Any) -> None:
        """Add a piece; the first tile that reads a panel packs it before."""
        block, chunk, at, (tile, panel) = self.block, self.chunk, self.corner, self.number
        left = Reading(tile, at.begin, 1, block.shape.window, at.shift)
        right = Reading(panel, at.column, self.vectors, self.lanes)
        rows = block.shape.chunk // block.shape.pieces
        first = piece * rows
        part = Part(first, tirx.min(wide(rows), chunk.count - first))
        for side, reading, number, owns in (
            (block.left, left, panel, block.owns_left),
            (block.right, right, tile, block.owns_right),
        ):
            if side.has_to_read:
                with T.If(number == 0), T.Then():
                    side.pack(reading, chunk, part, owns)
        with T.serial(wide(0), part.count) as k:
            self._add_row(left, right, part.first + k)

    def _add_row(self, left: Reading, right: Reading, k: Any) -> None:
        """Add the products of row `k` of the chunk."""
        block, row = self.block, (self.chunk.start + k, k)
        values = T.alloc_buffer((self.vectors * self.lanes,), self.dtype)
        with right.each() as place:
            T.buffer_store(values, block.right.vector(right, row, place), [ramp(place, self.lanes)])
        with unrolled(self.height) as r:
            x = T.Bind(block.left.number(left, row, r))
            with unrolled(self.vectors) as v:
                own, value = self._own(r, v), load(values, ramp(v * self.lanes, self.lanes))
                total = load(self.own, own) + tirx.Broadcast(x, self.lanes) * value
                T.buffer_store(self.own, total, [own])

    def _start(self) -> None:
        with self._each() as (r, v):
            T.buffer_store(self.own, zeros(self.dtype, self.lanes), [self._own(r, v)])

    def _take_up(self) -> None:
        with self._each() as (r, v):
            T.buffer_store(self.own, load(self.block.sums, self._stored(r, v)), [self._own(r, v)])

    def _put_down(self) -> None:
        with self._each() as (r, v):
            T.buffer_store(self.block.sums, load(self.own, self._own(r, v)), [self._stored(r, v)])

    def _store(self) -> None:
        row, column, *_ = self.corner
        out = self.block.out
        if not self.block.flipped:
            with self._each() as (r, v):
                at = ramp(column + v * self.lanes, self.lanes)
                T.buffer_store(out, load(self.own, self._own(r, v)), [row + r, at])
            return
        self._put_down()
        width = self.vectors * self.lanes
        with T.serial(wide(0), wide(width)) as j, T.serial(wide(0), wide(self.height)) as i:
            value = load(self.block.sums, self.stored + i * width + j)
            T.buffer_store(out, value, [column + j, row + i])

    @contextmanager
    def _each(self) -> Iterator[tuple[Any, Any]]:
        """Emit code for every row and vector of the tile."""
        with unrolled(self.height) as r, unrolled(self.vectors) as v:
            yield r, v

    def _own(self, r: Any, v: Any) -> Any:
        return ramp((r * self.vectors + v) * self.lanes, self.lanes)

    def _stored(self, r: Any, v: Any) -> Any:
        return ramp(self.stored + (r * self.vectors + v) * self.lanes, self.lanes)


def _either(condition: Any, then: Callable[[], None], otherwise: Callable[[], None]) -> None:
    with T.If(condition):
        with T.Then():
            then()
        with T.Else():
            otherwise()
