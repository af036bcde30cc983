# SPDX-License-Identifier: Apache-2.0
"""Where in the user's data something is wrong, so that every message can say it the same way.

Rows count from 0 within their file, as in NumPy and pandas.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from sparsetrain.errors import DataError


@dataclass(frozen=True)
class Place:
    """A run of rows, and maybe one column of it.

    Attributes
    ----------
    name : str
        The file, or what a source in memory is called.
    row_group : int or None
        The row group of a parquet file.
    first_row : int
        Row of the file at which the run begins.
    column : str or None
        The column looked at.
    """

    name: str
    row_group: int | None = None
    first_row: int = 0
    column: str | None = None

    def of(self, column: str) -> Place:
        """Return the same rows, one column of them."""
        return replace(self, column=column)

    def moved(self, rows: int) -> Place:
        """Return the place that begins `rows` rows later."""
        return replace(self, first_row=self.first_row + rows)

    def error(self, reason: str, row: int | None = None) -> DataError:
        """Return a `DataError` about `row` (counted from `first_row`), for the caller to raise."""
        parts = [
            None if self.row_group is None else f"row group {self.row_group}",
            None if row is None else f"row {self.first_row + row}",
            None if self.column is None else f"column {self.column}",
        ]
        where = ", ".join(part for part in parts if part)
        return DataError(f"{self.name}: {where}: {reason}" if where else f"{self.name}: {reason}")
