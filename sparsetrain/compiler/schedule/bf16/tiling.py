# SPDX-License-Identifier: Apache-2.0
"""Tiling of a bfloat16 product: tasks for the threads, and register tiles.

A tile of 8 rows x two vectors of 16 columns, or of 16 rows x one vector, has 16 sums in flight: an
instruction that adds to a sum waits for the previous one, and two can start per cycle.

If rows in memory already suit the instruction, a task computes few rows times all columns. If the
sum runs over rows of memory (TN, a weight's gradient), its length is the batch size: unknown, and
large. A task then packs its rows of the left operand, which stay in a near cache, and fetches its
panels of the right one from a far cache: more rows mean fewer fetches per result. If there were too
few tasks, each gets only a subset of the panels.
"""

import itertools
from typing import NamedTuple

from sparsetrain.compiler.schedule.product import Extent, Product

LANES = 16
_SUMS = 16
# Symbolic rows are padded to this many tiles; more tiles would be waste for a small batch.
_TILES_PER_ROW_BLOCK = 4
# Least number of row blocks, or of tasks, so that every thread gets work.
_FEWEST_ROW_BLOCKS = 16
FEWEST_TASKS = 8
# Most tiles of a task: at a batch of 2048, it packs 256 KB of the left operand.
MOST_TILES = 8
# See `best_task`.
_COST_OF_PACKING = 0.7
_COST_OF_FETCHING = 0.2


class Shape(NamedTuple):
    """A register tile's rows and vectors of 16 columns, and a task's tiles and panels.

    A panel is as wide as a tile; None means all panels.
    """

    rows: int
    vectors: int
    tiles: int
    panels: int | None

    @property
    def columns(self) -> int:
        """Columns of a tile."""
        return self.vectors * LANES


def choose_shape(product: Product) -> Shape:
    """Choose the shape for a product; any extent may be symbolic."""
    narrow = isinstance(product.columns, int) and product.columns <= LANES
    vectors = 1 if narrow else 2
    if product.left.contracted_is_contiguous:
        rows = _SUMS // 2
        return Shape(rows, vectors, _tiles_of_rows(product.rows, rows), None)
    rows = _SUMS // vectors
    return Shape(rows, vectors, *_task(product, rows, vectors * LANES))


def _tiles_of_rows(rows: Extent, tile_rows: int) -> int:
    """Return the number of tiles of a task that computes all panels."""
    if not isinstance(rows, int):
        return _TILES_PER_ROW_BLOCK
    return max(1, min(_TILES_PER_ROW_BLOCK, rows // (tile_rows * _FEWEST_ROW_BLOCKS)))


def _task(product: Product, tile_rows: int, tile_columns: int) -> tuple[int, int | None]:
    """Return the numbers of tiles and panels of a task that packs its own rows."""
    if not isinstance(product.rows, int):
        return _TILES_PER_ROW_BLOCK, None
    tiles = -(-product.rows // tile_rows)
    if not isinstance(product.columns, int):
        return max(1, min(MOST_TILES, tiles // FEWEST_TASKS)), None
    panels = -(-product.columns // tile_columns)
    return best_task(tiles, panels, _COST_OF_PACKING, _COST_OF_FETCHING)


def best_task(
    all_tiles: int, all_panels: int, cost_of_packing: float, cost_of_fetching: float
) -> tuple[int, int]:
    """Choose a task's numbers of tiles and panels so that the slowest thread ends earliest.

    Costs are for packing a tile's rows and fetching a panel; computing one tile of one panel costs
    1.
    """

    def time(task: tuple[int, int]) -> float:
        tiles, panels = task
        rounds = -(-(-(-all_tiles // tiles) * (all_panels // panels)) // FEWEST_TASKS)
        return rounds * (tiles * panels + cost_of_packing * tiles + cost_of_fetching * panels)

    whole = [panels for panels in range(1, all_panels + 1) if all_panels % panels == 0]
    return min(itertools.product(range(1, min(all_tiles, MOST_TILES) + 1), whole), key=time)
