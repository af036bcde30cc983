# SPDX-License-Identifier: Apache-2.0
"""Tiling of a product summed over rows: register tiles, blocks of tiles, and tasks for threads.

If the last tile or panel would cross the edge, it begins earlier instead. It then computes a few
rows or columns again, with the same bits, and needs neither padding nor masks.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from tvm import tirx
from tvm.target import Target

from sparsetrain.compiler.schedule.register_tile import register_tile, vector_unit
from sparsetrain.runtime.host import select_by_cpu

# Largest numbers of tiles and panels in a block. With AVX-512, the block's panels, sums and
# prefetched rows take 720 KB.
_MOST_TILES, _MOST_PANELS = 16, 8
# Rows in a chunk; they amortize loading and storing a tile's sums. A tile's panels take a third of
# a first-level cache with AVX, and two thirds with AVX-512. Products of 256 x 512 over 2048 rows on
# two cores of Zen 3 run at 106 GFLOP/s with chunks of 64 rows, 120 with 128 and 107 with 192. On
# one core of Zen 4 they run at 96 with 64 and 98 with 128; products over 128 rows at 98 and 104.
_CHUNK = 128
# Number of registers -> pieces of a chunk. A tile prefetches part of the next chunk before each
# piece; all prefetches at once would delay its own loads.
_PIECES = {32: 8, 16: 2}
# Prefix of the CPU's name -> most vectors in a row of a tile. With 3, a Kaggle step takes 6 %
# longer on Zen 4.
_MOST_VECTORS = {"znver": 2, "": 3}
# With fewer rows, the schedule for reductions is as fast.
_FEWEST_ROWS = 4
# Registers needed besides the sums, for a row of the right operand and a number of the left.
_OTHER_REGISTERS = 3


class Shape(NamedTuple):
    """A product whose result is in tiles of `height` rows and `vectors` vectors of `lanes`.

    Parameters
    ----------
    rows, columns : int or None
        The result's size; None for any that takes more than one tile, so that products of many
        sizes share a kernel.
    height, vectors, lanes : int
        Rows of a tile, vectors in each, numbers in a vector.
    last_vectors : int
        Vectors of the last panel.
    window : int
        How many elements of each left row a tile reads: a power of two, if that many exist. Six
        elements would take two loads, two stores and a few shuffles; eight take one load and one
        store. At the edge, the window begins before its tile.
    chunk, pieces : int
        Tiles are summed over chunks of `chunk` operand rows, each in `pieces` pieces.
    """

    rows: int | None
    columns: int | None
    height: int
    vectors: int
    lanes: int
    last_vectors: int
    window: int
    chunk: int
    pieces: int

    @property
    def width(self) -> int:
        """Number of columns in a panel."""
        return self.vectors * self.lanes

    def tiles(self, rows: Any, columns: Any) -> tuple[Any, Any]:
        """Return the numbers of tiles and of panels of a result of this size."""
        sides = (rows, self.rows, self.height), (columns, self.columns, self.width)
        return tuple(
            tirx.const(1, "int64") if known else tirx.ceildiv(extent, of)
            for extent, known, of in sides
        )

    @property
    def most(self) -> tuple[int, int]:
        """Largest numbers of tiles and panels in a block."""
        return 1 if self.rows else _MOST_TILES, 1 if self.columns else _MOST_PANELS


def shape_of(rows: int, columns: int, dtype: str, target: Target) -> Shape | None:
    """Return the tiling of a product, or None if it is too small for this kernel."""
    unit = vector_unit(target)
    lanes = unit.lanes(dtype)
    if lanes < 2 or columns < lanes or rows < _FEWEST_ROWS:
        return None
    vectors, free = min(2, columns // lanes), unit.registers - _OTHER_REGISTERS
    if rows * vectors <= free:
        height = window = rows
    else:
        height = register_tile(target, dtype, columns).rows
        whole = 1 << (height - 1).bit_length()
        window = whole if whole <= rows else height
        # A panel must fit into the result, and the last must not have a single vector.
        has_room = columns >= 3 * lanes and 3 * height <= free
        in_row = -(-columns // lanes)
        if select_by_cpu(_MOST_VECTORS, target) >= 3 and has_room and in_row % 3 != 1:
            vectors = 3
    width = vectors * lanes
    rest = -(-(columns % width or width) // lanes)
    return Shape(
        None if rows > height else rows,
        None if columns > width else columns,
        height,
        vectors,
        lanes,
        last_vectors=rest if rest > 1 else vectors,  # one vector would run at half the speed
        window=window,
        chunk=_CHUNK,
        pieces=_PIECES[unit.registers],
    )
