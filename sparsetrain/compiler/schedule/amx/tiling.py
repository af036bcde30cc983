# SPDX-License-Identifier: Apache-2.0
"""Tiling of a product for AMX: its tasks for the threads.

A tile is 32 rows by a panel of 32 columns. A task has some tiles of rows and goes over all column
panels. If the right operand fits into the second-level cache beside the rows of a task, it does so
for one tile of rows after another: results are written, and masks read, row by row. Otherwise a
panel is fetched once for all tiles of rows.

If the sum runs over rows of memory (TN), its length is the batch size, unknown and long: a task
then gets a subset of the panels only if there would be too few tasks otherwise.
"""

from math import prod
from typing import NamedTuple

from sparsetrain.compiler.schedule.amx.helpers import SIDE
from sparsetrain.compiler.schedule.bf16.tiling import FEWEST_TASKS, MOST_TILES, best_task
from sparsetrain.compiler.schedule.product import Product

# Of a task, where few rows are known beforehand: 128 rows.
_TILES = 4
# Half of a second-level cache.
_NEAR_BYTES = 1 << 20
# See `best_task`.
_COST_OF_PACKING = 5.0
_COST_OF_FETCHING = 1.0


class Shape(NamedTuple):
    """Tiles and panels of a task, None means all panels; which of them is the outer loop."""

    tiles: int
    panels: int | None
    by_rows: bool = False


def choose_shape(product: Product) -> Shape:
    """The shape for a product, any of whose extents may be known only at run time."""
    if not isinstance(product.rows, int):
        return Shape(_TILES, None, _is_near(product))
    tiles = -(-product.rows // SIDE)
    if not isinstance(product.columns, int):
        return Shape(max(1, min(MOST_TILES, tiles // FEWEST_TASKS)), None)
    panels = -(-product.columns // SIDE)
    return Shape(*best_task(tiles, panels, _COST_OF_PACKING, _COST_OF_FETCHING))


def _is_near(product: Product) -> bool:
    """Whether a near cache holds the right operand."""
    extents = product.columns, product.contracted
    return all(isinstance(n, int) for n in extents) and 2 * prod(extents) <= _NEAR_BYTES
