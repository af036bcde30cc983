# SPDX-License-Identifier: Apache-2.0
"""Grid of a product: each block computes a tile of the result over one piece of `k` (split-K).

All kinds of tiles share this code: the kernel around a tile, the tile's position in the grid, and
its piece of `k`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

from tvm import tirx
from tvm.script.ir_builder import tirx as T

from sparsetrain.kernels.builder import SCHEDULED, kernel

_WIDE, _NARROW = 128, 64  # extents of a tile along rows and columns

# (row, column, value): writes one sum to the result.
Store = Callable[[Any, Any, Any], None]


class TileOperand(Protocol):
    """An operand: a matrix, the dimensions of its own axis and of `k`, and the tile's length."""

    source: Any
    axis: int
    inner: int
    length: int


class TiledProduct(NamedTuple):
    """A product, and how its result is divided into tiles, one per thread block.

    Parameters
    ----------
    left, right : TileOperand
        The operands. Their `length` is the number of rows or columns in a tile.
    rows, columns : int or Expr
        The number of rows and columns of the result to compute.
    pieces : int
        Number of pieces into which `k` is split; different blocks compute these in parallel.
    """

    left: Any
    right: Any
    rows: Any
    columns: Any
    pieces: int = 1

    @property
    def steps(self) -> Any:
        """Number of terms in each sum."""
        return self.left.source.shape[self.left.inner]

    def span(self, piece: Any, turn: int) -> tuple[Any, Any]:
        """Return the start and end of a piece of `k`; its length is a multiple of `turn` steps."""
        if self.pieces == 1:
            return tirx.const(0, "int64"), self.steps
        turns = tirx.ceildiv(tirx.ceildiv(self.steps, self.pieces), turn)
        begin = T.Bind(tirx.min(piece * turns * turn, self.steps))
        return begin, T.Bind(tirx.min(begin + turns * turn, self.steps))


class Place(NamedTuple):
    """A thread's position: its block's tile (row, column) and piece, its number in the block."""

    row: Any
    column: Any
    piece: Any
    thread: Any


def tile_length(rows: Any, columns: Any) -> int:
    """Return a tile's length: large tiles read less memory, small tiles make more blocks."""
    known = [int(extent) for extent in (rows, columns) if isinstance(extent, (int, tirx.IntImm))]
    return _NARROW if min(known, default=_WIDE) <= _NARROW else _WIDE


def wide(extent: Any) -> Any:
    """Return an extent as an int64 expression."""
    return tirx.const(extent, "int64") if isinstance(extent, int) else extent


def kernel_of(
    function: tirx.PrimFunc, product: TiledProduct, threads: int, run: Callable[[Place], None]
) -> tirx.PrimFunc:
    """Replace a function's body with a product; `run` emits the code of a thread."""
    return marked(function.with_body(_body(product, threads, run)))


def marked(kernel: tirx.PrimFunc) -> tirx.PrimFunc:
    """Mark a kernel so that fusion and schedule rules skip it."""
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
