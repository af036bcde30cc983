# SPDX-License-Identifier: Apache-2.0
"""Tiling of a product summed over rows: register tiles, blocks of tiles, and tasks for threads.

If the last tile or panel would cross the edge, it begins earlier instead. It then computes a few
rows or columns again, with the same bits, and needs neither padding nor masks.
"""

from __future__ import annotations

from typing import NamedTuple

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
# Largest number of ways to cut a product, from few large tasks to many small tasks.
_MOST_CUTS = 6
# With fewer rows, the schedule for reductions is as fast.
_FEWEST_ROWS = 4
# Registers needed besides the sums, for a row of the right operand and a number of the left.
_OTHER_REGISTERS = 3


class Shape(NamedTuple):
    """A result of `rows` x `columns` in tiles of `height` rows and `vectors` vectors of `lanes`.

    Tiles are summed over chunks of `chunk` operand rows; each chunk is split into `pieces` pieces.
    """

    rows: int
    columns: int
    height: int
    vectors: int
    lanes: int
    chunk: int
    pieces: int

    @property
    def width(self) -> int:
        """Number of columns in a panel."""
        return self.vectors * self.lanes

    @property
    def window(self) -> int:
        """How many elements of each left row a tile reads: a power of two, if that many exist.

        Six elements would take two loads, two stores and a few shuffles; eight take one load and
        one store. At the edge, the window begins before its tile.
        """
        whole = 1 << (self.height - 1).bit_length()
        return whole if self.tiles > 1 and whole <= self.rows else self.height

    @property
    def tiles(self) -> int:
        """Number of tiles from top to bottom."""
        return -(-self.rows // self.height)

    @property
    def panels(self) -> int:
        """Number of panels from left to right."""
        return -(-self.columns // self.width)

    @property
    def last_vectors(self) -> int:
        """Number of vectors in the last panel; one of a single vector would run at half the speed."""
        rest = -(-(self.columns - (self.panels - 1) * self.width) // self.lanes)
        return rest if rest > 1 else self.vectors

    @property
    def most(self) -> tuple[int, int]:
        """Numbers of tiles and panels in the largest possible block."""
        down, across = self.cuts()[0]
        return -(-self.tiles // down), -(-self.panels // across)

    def cuts(self) -> list[tuple[int, int]]:
        """Return the possible (blocks down, blocks across), from the fewest blocks to the most."""
        down, across = -(-self.tiles // _MOST_TILES), -(-self.panels // _MOST_PANELS)
        found = [(down, across)]
        while len(found) < _MOST_CUTS and (down < self.tiles or across < self.panels):
            is_wide = self.columns * down >= self.rows * across
            if across < self.panels and (is_wide or down == self.tiles):
                across = min(2 * across, self.panels)
            else:
                down = min(2 * down, self.tiles)
            found.append((down, across))
        return found


def shape_of(rows: int, columns: int, dtype: str, target: Target) -> Shape | None:
    """Return the tiling of a product, or None if it is too small for this kernel."""
    unit = vector_unit(target)
    lanes = unit.lanes(dtype)
    if lanes < 2 or columns < lanes or rows < _FEWEST_ROWS:
        return None
    vectors = min(2, columns // lanes)
    chunk = _CHUNK, _PIECES[unit.registers]
    free = unit.registers - _OTHER_REGISTERS
    if rows * vectors <= free:
        return Shape(rows, columns, rows, vectors, lanes, *chunk)
    height = register_tile(target, dtype, columns).rows
    in_row = -(-columns // lanes)
    # A panel must fit into the result. A last panel of one vector would run at half the speed.
    has_room = columns >= 3 * lanes and 3 * height <= free
    if select_by_cpu(_MOST_VECTORS, target) >= 3 and has_room and in_row % 3 != 1:
        vectors = 3
    return Shape(rows, columns, height, vectors, lanes, *chunk)
