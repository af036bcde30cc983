# SPDX-License-Identifier: Apache-2.0
"""Float32 products: the work of threads and thread blocks.

A thread computes 8 x 8 sums in registers: 2 x 2 squares of 4 x 4, half a tile apart, so that a warp
of 4 x 8 threads reads shared memory without bank conflicts. A block of 256 threads computes
128 x 128 of the result, a block of 64 threads 64 x 64. A block walks along `k` in tiles of 16
steps: while one tile in shared memory is multiplied, the next is loaded from global memory
(`float_operand.py`). Two buffers in shared memory alternate, so one barrier per tile is enough.
Every sum runs along `k` in order, by fused multiply-adds. Cost: for each step of `k`, a thread does
64 multiply-adds and 4 reads of 16 bytes from shared memory. A block of 256 threads takes 34 KB of
shared memory; a multiprocessor runs 16 warps.
"""

from __future__ import annotations

from typing import Any

from tvm import tirx
from tvm.script.ir_builder import tirx as T

from sparsetrain.backends.cuda.schedule import float_source
from sparsetrain.backends.cuda.schedule.float_operand import DEPTH, FloatReader
from sparsetrain.backends.cuda.schedule.tiles import Place, Store, TiledProduct

_ROWS, _COLUMNS = 4, 8  # threads of a warp, along rows and along columns
_WARP = _ROWS * _COLUMNS
_OWN = 8  # rows and columns of a thread's sums
_BLOCK = 4  # rows and columns of a contiguous square of these


def threads_of(length: int) -> int:
    """Return the number of threads in a block that computes a square tile of this length."""
    return (length // _OWN) ** 2


class FloatTile:
    """The work of a thread block: a tile of the result over a piece of `k`."""

    def __init__(self, product: TiledProduct, place: Place) -> None:
        self.product, self.piece = product, place.piece
        self.operands = product.left, product.right
        self.length = product.left.length
        self.first = [
            T.Bind(n * o.length)
            for n, o in zip((place.row, place.column), self.operands, strict=True)
        ]
        self.own = self._own(place.thread)
        # Both buffers are in one array: TVM would place two arrays at the same address if the loop
        # along `k` runs only once.
        self.shared = T.alloc_buffer((4 * product.left.size,), "float32", scope="shared")
        threads = threads_of(self.length)
        # Both buffers are filled from the same registers.
        self.readers = [
            FloatReader(o, place.thread, threads, first)
            for o, first in zip(self.operands, self.first, strict=True)
        ]
        self.sums = T.alloc_local((_OWN * _OWN,), "float32")

    def _own(self, thread: Any) -> list[Any]:
        """Return the first row and column of a thread's sums in the tile."""
        warp, lane = tirx.floordiv(thread, _WARP), tirx.floormod(thread, _WARP)
        across = self.length // _OWN // _COLUMNS  # warps along the columns of the tile
        row = tirx.floordiv(warp, across) * _ROWS + tirx.floordiv(lane, _COLUMNS)
        column = tirx.floormod(warp, across) * _COLUMNS + tirx.floormod(lane, _COLUMNS)
        return [T.Bind(row * _BLOCK), T.Bind(column * _BLOCK)]

    def run(self, store: Store) -> None:
        """Sum along `k`, and pass the sums to `store`."""
        with T.unroll(0, _OWN * _OWN) as n:
            T.buffer_store(self.sums, tirx.const(0, "float32"), [n])
        begin, end = self.product.span(self.piece, 2 * DEPTH)
        self._read(begin, end)
        with T.serial(0, tirx.ceildiv(end - begin, 2 * DEPTH)) as turn:
            for half in range(2):
                tiles = [(2 * half + n) * self.operands[0].size for n in range(2)]
                for reader, tile in zip(self.readers, tiles, strict=True):
                    reader.store(self.shared, tile)
                T.evaluate(tirx.call_intrin("int32", "tirx.tvm_storage_sync", "shared"))
                self._read(begin + (2 * turn + half + 1) * DEPTH, end)
                self._multiply(tiles)
        self._store(store)

    def _read(self, k: Any, end: Any) -> None:
        for reader in self.readers:
            reader.read(k, end)

    def _multiply(self, tiles: list[int]) -> None:
        left, right = (
            tirx.address_of(self.shared[tile + own])
            for tile, own in zip(tiles, self.own, strict=True)
        )
        pointers = tirx.address_of(self.sums[0]), left, right
        pitch = self.operands[0].pitch
        T.evaluate(float_source.multiply(self.length, DEPTH, pitch, pointers))

    def _store(self, store: Store) -> None:
        """Pass each thread's sums to `store`, four columns at once if 4 divides the row length."""
        with T.unroll(0, 2) as down, T.unroll(0, _BLOCK) as i:
            own = self.own[0] + down * (self.length // 2) + i
            row = T.Bind(self.first[0] + tirx.Cast("int64", own))
            with T.If(row < self.product.rows), T.Then(), T.unroll(0, 2) as across:
                own = self.own[1] + across * (self.length // 2)
                column = T.Bind(self.first[1] + tirx.Cast("int64", own))
                place = (down * _BLOCK + i) * _OWN + across * _BLOCK
                self._store_block(store, row, column, place)

    def _store_block(self, store: Store, row: Any, column: Any, place: Any) -> None:
        columns = self.product.columns
        if isinstance(columns, tirx.IntImm) and int(columns) % _BLOCK == 0:
            with T.If(column < columns), T.Then(), T.vectorized(0, _BLOCK) as lane:
                store(row, column + tirx.Cast("int64", lane), self.sums[place + lane])
            return
        for neighbour in range(_BLOCK):
            with T.If(column + neighbour < columns), T.Then():
                store(row, column + neighbour, self.sums[place + neighbour])
