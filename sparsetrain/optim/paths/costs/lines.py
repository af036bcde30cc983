# SPDX-License-Identifier: Apache-2.0
"""The costs of the two paths of a row-sparse gradient as straight lines.

The sparse path: a fixed cost, one for each looked-up id (sorting, summing), one for each distinct
row (to read and write). The dense path: a fixed cost, one for each id of the gradient (parting),
one for each of a dense row (adding, clearing), and one for each row of the table. How many rows are
distinct is reckoned from ids that are drawn evenly. Two things bend the lines: few ids are sorted
by one thread and many by all, and rows cost more where the caches end. So there are figures for few
ids and for many, and a row beyond `high` of its table has a price of its own.
"""

from __future__ import annotations

from math import expm1
from typing import NamedTuple


class Costs(NamedTuple):
    """Microseconds.

    Parameters
    ----------
    sparse, dense : float
        Of a step at all, by each path.
    entry, touched : float
        Of an id and of a distinct row on the sparse path.
    part, add : float
        Of an id of any row, and of one of a dense row, where there is a dense path.
    row, far_row : float
        Of a row on the dense path, up to the number `high` and beyond.
    high : float
        Rows.
    waited : float
        Seconds that threads waited for a core, in each second of the measurement.
    """

    sparse: float
    dense: float
    entry: float
    touched: float
    part: float
    add: float
    row: float
    far_row: float
    high: float
    waited: float = 0.0

    def on_sparse_path(self, rows: int, lookups: float) -> float:
        """Microseconds of a table of some rows, fixed costs apart."""
        return self.entry * lookups + self.touched * distinct_rows(rows, lookups)

    def saved(self, rows: int, lookups: float) -> float:
        """Microseconds that a table saves on the dense path, fixed costs apart."""
        beyond = max(rows - self.high, 0.0)
        dense = self.add * lookups + self.row * (rows - beyond) + self.far_row * beyond
        return self.on_sparse_path(rows, lookups) - dense


def distinct_rows(rows: int, lookups: float) -> float:
    """How many rows are drawn at least once, on average, if all are equally likely."""
    return -rows * expm1(-lookups / rows) if rows else 0.0
