# SPDX-License-Identifier: Apache-2.0
"""How a product by tile registers is cut into tasks for the threads.

A tile is 32 rows by a panel of 32 columns. A task has some tiles of rows and goes over all column
panels. Where the right operand fits into a second-level cache, beside the rows of a task, it does
so for one tile of rows after another: results are written, and masks read, row by row. Where it
does not, a panel is fetched once for all tiles of rows.

Where the sum runs over rows of memory (TN), its length is a batch's, unknown and long: then a task
has some of the panels only if there were too few tasks otherwise.
"""

import itertools
from math import prod
from typing import NamedTuple

from ..product import Product
from .helpers import SIDE

# Of a task, where few rows are known beforehand: 128 rows.
_TILES = 4
_MOST_TILES = 8
# Tasks to aim for, so that every thread gets some.
_FEWEST_TASKS = 8
# Half of a second-level cache.
_NEAR_BYTES = 1 << 20
# Of a tile's rows and of a panel, beside computing one tile of one panel.
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
        return Shape(max(1, min(_MOST_TILES, tiles // _FEWEST_TASKS)), None)
    panels = -(-product.columns // SIDE)
    choices = itertools.product(
        range(1, min(tiles, _MOST_TILES) + 1),
        [p for p in range(1, panels + 1) if panels % p == 0],
    )
    return Shape(*min(choices, key=lambda choice: _cost(tiles, panels, *choice)))


def _is_near(product: Product) -> bool:
    """Whether a near cache holds the right operand."""
    extents = product.columns, product.contracted
    return all(isinstance(n, int) for n in extents) and 2 * prod(extents) <= _NEAR_BYTES


def _cost(all_tiles: int, all_panels: int, tiles: int, panels: int) -> float:
    """Time of the slowest thread, of as many as there must be tasks; a tile takes 1."""
    tasks = -(-all_tiles // tiles) * (all_panels // panels)
    rounds = -(-tasks // _FEWEST_TASKS)
    return rounds * (tiles * panels + _COST_OF_PACKING * tiles + _COST_OF_FETCHING * panels)
