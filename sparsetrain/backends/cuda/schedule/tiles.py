# SPDX-License-Identifier: Apache-2.0
"""Grid of a product: each block computes a tile of the result over one piece of `k` (split-K).

The kernel around a tile, its place in the grid and its part of `k` are the same for all kinds of
tiles.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

from tvm import tirx
from tvm.script.ir_builder import tirx as T

from sparsetrain.kernels.builder import SCHEDULED, kernel

_WIDE, _NARROW = 128, 64  # of a tile, along rows and columns

# (row, column, value) -> writes it if both are inside the matrix.
Store = Callable[[Any, Any, Any], None]


class TileOperand(Protocol):
    """A factor: a matrix, the dimensions of its own axis and of `k`, and places of a tile."""

    source: Any
    axis: int
    inner: int
    length: int


class TiledProduct(NamedTuple):
    """A product, and how its result is cut into the tiles of blocks.

    Parameters
    ----------
    left, right : TileOperand
        Their lengths are the rows and columns of a tile.
    rows, columns : int or Expr
        Computed part of the result, from its first place on.
    pieces : int
        Parts into which `k` is cut, side by side; a block computes one.
    """

    left: Any
    right: Any
    rows: Any
    columns: Any
    pieces: int = 1

    @property
    def steps(self) -> Any:
        """Terms of each sum."""
        return self.left.source.shape[self.left.inner]

    def span(self, piece: Any, turn: int) -> tuple[Any, Any]:
        """Begin and end of a piece's part of `k`, in whole turns of a loop."""
        if self.pieces == 1:
            return tirx.const(0, "int64"), self.steps
        turns = tirx.ceildiv(tirx.ceildiv(self.steps, self.pieces), turn)
        begin = T.Bind(tirx.min(piece * turns * turn, self.steps))
        return begin, T.Bind(tirx.min(begin + turns * turn, self.steps))


class Place(NamedTuple):
    """Where a thread is: its block's tile and piece, its number in the block."""

    row: Any
    column: Any
    piece: Any
    thread: Any


def tile_length(rows: Any, columns: Any) -> int:
    """Places of a tile along rows and columns: large tiles read less, small ones are more."""
    known = [int(extent) for extent in (rows, columns) if isinstance(extent, (int, tirx.IntImm))]
    return _NARROW if min(known, default=_WIDE) <= _NARROW else _WIDE


def wide(extent: Any) -> Any:
    """An extent as an expression of 64 bits."""
    return tirx.const(extent, "int64") if isinstance(extent, int) else extent


def kernel_of(
    function: tirx.PrimFunc, product: TiledProduct, threads: int, run: Callable[[Place], None]
) -> tirx.PrimFunc:
    """`function` with a product as its body; `run` emits a thread's work."""
    return marked(function.with_body(_body(product, threads, run)))


def marked(kernel: tirx.PrimFunc) -> tirx.PrimFunc:
    """A kernel that no fusion and no rule touches."""
    for key, value in SCHEDULED.items():
        kernel = kernel.with_attr(key, value)
    return kernel


def _body(product: TiledProduct, threads: int, run: Callable[[Place], None]) -> tirx.Stmt:
    with kernel("product") as built:
        tiles = [
            tirx.max(tirx.ceildiv(extent, operand.length), tirx.const(1, "int64"))
            for extent, operand in (
                (product.columns, product.right),
                (product.rows, product.left),
            )
        ]
        zero = tirx.const(0, "int64")
        pieces = tirx.const(product.pieces, "int64")
        with (
            T.thread_binding(zero, tiles[0], thread="blockIdx.x") as column,
            T.thread_binding(zero, tiles[1], thread="blockIdx.y") as row,
            T.thread_binding(zero, pieces, thread="blockIdx.z") as piece,
            T.thread_binding(0, threads, thread="threadIdx.x") as thread,
            T.attr(zero, "tirx.launch_bounds_min_blocks_per_sm", 512 // threads),
        ):
            run(Place(row, column, piece, thread))
    return built.get().body
