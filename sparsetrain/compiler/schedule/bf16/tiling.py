# SPDX-License-Identifier: Apache-2.0
"""Tiling of a bfloat16 product: tasks for the threads, and register tiles.

A tile of 8 rows x two vectors of 16 columns, or of 16 rows x one vector, accumulates 16 sums at
once. This hides latency: an instruction waits for the previous instruction on the same sum, and two
instructions can start per cycle.

If `k` is contiguous in the left operand, a task computes a few rows times all columns. If `k` runs
over rows in memory (TN, as in a weight's gradient), its length is the batch size, which is unknown
and large. A task then packs its rows of the left operand, which stay in a near cache, and fetches
panels of the right operand from a far cache, so more rows mean fewer fetches per result. If there
would be too few tasks, each task computes only some of the panels.
"""

import itertools
from typing import NamedTuple

from sparsetrain.compiler.schedule.product import Extent, Product

LANES = 16
_SUMS = 16
# Symbolic rows are padded to a multiple of this many tiles; more would waste work on small batches.
_TILES_PER_ROW_BLOCK = 4
# Smallest number of row blocks, or of tasks, so that every thread gets work.
_FEWEST_ROW_BLOCKS = 16
FEWEST_TASKS = 8
# Largest number of tiles in a task: at a batch of 2048, it packs 256 KB of the left operand.
MOST_TILES = 8
# Weights in the cost that `best_task` minimizes.
_COST_OF_PACKING = 0.7
_COST_OF_FETCHING = 0.2


class Shape(NamedTuple):
    """The rows and vectors of 16 columns in a register tile; the tiles and panels in a task.

    A panel is as wide as a tile. None in place of the number of panels means all.
    """

    rows: int
    vectors: int
    tiles: int
    panels: int | None

    @property
    def columns(self) -> int:
        """Number of columns in a tile."""
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

    The costs are for packing the rows of a tile and for fetching a panel, relative to computing one
    tile of one panel.
    """

    def time(task: tuple[int, int]) -> float:
        tiles, panels = task
        rounds = -(-(-(-all_tiles // tiles) * (all_panels // panels)) // FEWEST_TASKS)
        return rounds * (tiles * panels + cost_of_packing * tiles + cost_of_fetching * panels)

    whole = [panels for panels in range(1, all_panels + 1) if all_panels % panels == 0]
    return min(itertools.product(range(1, min(all_tiles, MOST_TILES) + 1), whole), key=time)
