# SPDX-License-Identifier: Apache-2.0
"""How a convolution is cut: examples in a block, rows and vectors in a register tile."""

from __future__ import annotations

from typing import NamedTuple

from tvm import DataType
from tvm.target import Target

from sparsetrain.compiler.schedule.register_tile import vector_unit

# Registers -> rows and vectors of a tile, whose sums leave room for what is multiplied. More rows
# are better where there are as many; fewer read less twice at the end.
_TILES = {
    16: ((6, 2), (4, 3), (3, 4), (2, 6), (1, 8)),
    32: ((12, 2), (8, 3), (6, 4), (4, 6), (2, 8), (1, 8)),
}
# Of a block: its rows are to stay in a second-level cache, and a row is worth its beginning.
_BLOCK_BYTES = 1 << 17
_FEWEST_POSITIONS, _MOST_POSITIONS = 256, 1024
_LINE_BYTES = 64


class Tile(NamedTuple):
    """`height` rows by `vectors` vectors of `lanes` numbers."""

    height: int
    vectors: int
    lanes: int

    @property
    def width(self) -> int:
        """Numbers of a row."""
        return self.vectors * self.lanes


class Layout(NamedTuple):
    """How a side's examples lie: elements from a channel, and from a place, to the next one."""

    channels: int
    places: int
    channel_step: int
    place_step: int

    @property
    def size(self) -> int:
        """Elements of an example."""
        return self.channels * self.places


def tile_of(rows: int, dtype: str, target: Target) -> Tile:
    """The tile that computes the fewest of `rows` a second time."""
    unit = vector_unit(target)
    fitting = [tile for tile in _TILES[unit.registers] if tile[0] <= rows]
    height, vectors = min(fitting, key=lambda tile: -(-rows // tile[0]) * tile[0])
    return Tile(height, vectors, unit.lanes(dtype))


def examples_of(rows: int, length: int, dtype: str) -> int:
    """Examples in a block of so many rows, of `length` positions each; at least one."""
    fitting = _BLOCK_BYTES // (rows * DataType(dtype).itemsize)
    return max(1, min(max(fitting, _FEWEST_POSITIONS), _MOST_POSITIONS) // length)


def stride_of(positions: int, dtype: str) -> int:
    """From a row to the next: an odd number of cache lines, or rows would evict each other."""
    line = _LINE_BYTES // DataType(dtype).itemsize
    return (-(-positions // line) | 1) * line
