# SPDX-License-Identifier: Apache-2.0
"""Products on tensor cores: the work of warps and thread blocks.

A block of 8 warps (2 x 4) computes a tile of the result; each warp has a part of it in registers. A
block walks along `k` in tiles of 32 steps: while one tile in shared memory is multiplied, the next
is loaded from global memory (`half_operand.py`). Two buffers in shared memory alternate, so one
barrier per tile is enough. The buffers are separate arrays, and the loop body uses both in turn, so
that TVM can see that no other barrier is needed.

An mma instruction multiplies 16 x 16 by 16 x 8 numbers and adds in float32. Instructions run along
`k` in order, so the order of every sum depends only on shapes.

Cost: for 16 steps of `k` in a tile of 128 x 128, a thread loads 24 words from shared memory and
issues 16 instructions. A block takes 40 KB of shared memory.
"""

from __future__ import annotations

from typing import Any

from tvm import tirx
from tvm.script.ir_builder import tirx as T

from sparsetrain.backends.cuda.schedule import half_source
from sparsetrain.backends.cuda.schedule.half_operand import DEPTH, Reader
from sparsetrain.backends.cuda.schedule.tiles import Place, Store, TiledProduct

_WARP = 32
_WARP_ROWS, _WARP_COLUMNS = 2, 4  # warps of a block, along rows and along columns
_ROWS, _COLUMNS, _STEPS = 16, 8, 16  # rows, columns and steps of `k` of one mma instruction


class HalfTile:
    """The work of a thread block: a tile of the result over a piece of `k`."""

    def __init__(self, product: TiledProduct, place: Place) -> None:
        self.product, self.piece, thread = product, place.piece, place.thread
        self.operands = product.left, product.right
        self.first = [
            T.Bind(n * o.length)
            for n, o in zip((place.row, place.column), self.operands, strict=True)
        ]
        warp = T.Bind(tirx.floordiv(thread, _WARP))
        lane = T.Bind(tirx.floormod(thread, _WARP))
        # In the mma fragment layout, `group` (lane // 4) selects a thread's rows, and `member`
        # (lane % 4) its columns and its pairs in `k`.
        self.group, self.member = T.Bind(tirx.floordiv(lane, 4)), T.Bind(tirx.floormod(lane, 4))
        part = tirx.floordiv(warp, _WARP_COLUMNS), tirx.floormod(warp, _WARP_COLUMNS)
        self.part = [T.Bind(p * n) for p, n in zip(part, self._extents(), strict=True)]
        self.down, self.across = (
            n // m for n, m in zip(self._extents(), (_ROWS, _COLUMNS), strict=True)
        )
        self.shared = [
            [T.alloc_buffer((o.words,), "uint32", scope="shared") for o in self.operands]
            for _ in range(2)
        ]
        # Both buffers are filled from the same registers.
        self.readers = [
            Reader(o, thread, first) for o, first in zip(self.operands, self.first, strict=True)
        ]
        self.sums = T.alloc_local((self.down * self.across * 4,), "float32")
        self.a = T.alloc_local((self.down * 4,), "uint32")
        self.b = T.alloc_local((self.across * 2,), "uint32")

    def _extents(self) -> tuple[int, int]:
        """Return the numbers of rows and columns in a warp's part of the tile."""
        left, right = self.operands
        return left.length // _WARP_ROWS, right.length // _WARP_COLUMNS

    def run(self, store: Store) -> None:
        """Sum along `k`, and pass the sums to `store`."""
        with T.unroll(0, self.down * self.across * 4) as n:
            T.buffer_store(self.sums, tirx.const(0, "float32"), [n])
        begin, end = self.product.span(self.piece, 2 * DEPTH)
        self._read(begin, end)
        with T.serial(0, tirx.ceildiv(end - begin, 2 * DEPTH)) as turn:
            for half, shared in enumerate(self.shared):
                for reader, tile in zip(self.readers, shared, strict=True):
                    reader.store(tile)
                T.evaluate(tirx.call_intrin("int32", "tirx.tvm_storage_sync", "shared"))
                self._read(begin + (2 * turn + half + 1) * DEPTH, end)
                self._multiply(shared)
        self._store(store)

    def _read(self, k: Any, end: Any) -> None:
        for reader in self.readers:
            reader.read(k, end)

    def _multiply(self, shared: list[Any]) -> None:
        with T.unroll(0, DEPTH // _STEPS) as step:
            self._fragments(0, shared[0], step, self.a, _ROWS, self.down)
            self._fragments(1, shared[1], step, self.b, _COLUMNS, self.across)
            with T.unroll(0, self.down) as i, T.unroll(0, self.across) as j:
                place = tirx.address_of(self.sums[(i * self.across + j) * 4])
                a = [self.a[i * 4 + n] for n in range(4)]
                b = [self.b[j * 2 + n] for n in range(2)]
                T.evaluate(half_source.multiply(self.operands[0].half, place, a, b))

    def _fragments(
        self, which: int, tile: Any, step: Any, into: Any, size: int, count: int
    ) -> None:
        """Load a thread's words for `count` fragments; they are 8 indices or 4 pairs apart."""
        halves = size // 8
        with T.unroll(0, count) as n:
            for pair in range(2):
                for part in range(halves):
                    own = self.part[which] + n * size + part * 8 + self.group
                    place = self.operands[which].place(own, step * 8 + pair * 4 + self.member)
                    index = n * 2 * halves + pair * halves + part
                    T.buffer_store(into, tile[place], [index])

    def _store(self, store: Store) -> None:
        """Pass each thread's sums to `store`: two adjacent columns in each of two rows, 8 apart."""
        with T.unroll(0, self.down) as i, T.unroll(0, 2) as half:
            own = self.part[0] + i * _ROWS + half * 8 + self.group
            row = T.Bind(self.first[0] + tirx.Cast("int64", own))
            with T.If(row < self.product.rows), T.Then(), T.unroll(0, self.across) as j:
                own = self.part[1] + j * _COLUMNS + self.member * 2
                column = T.Bind(self.first[1] + tirx.Cast("int64", own))
                place = (i * self.across + j) * 4 + half * 2
                self._store_pair(store, row, column, place)

    def _store_pair(self, store: Store, row: Any, column: Any, place: Any) -> None:
        """Store two adjacent sums; do so in one access if rows begin at even offsets."""
        columns = self.product.columns
        if isinstance(columns, tirx.IntImm) and int(columns) % 2 == 0:
            with T.If(column < columns), T.Then(), T.vectorized(0, 2) as lane:
                store(row, column + lane, self.sums[place + lane])
            return
        for neighbour in range(2):
            with T.If(column + neighbour < columns), T.Then():
                store(row, column + neighbour, self.sums[place + neighbour])
