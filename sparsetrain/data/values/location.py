# SPDX-License-Identifier: Apache-2.0
"""Locations in the user's data: all errors name file, row and column in the same form.

Rows count from 0 within their file, as in NumPy and pandas; lines of a text file count from 1, as
in editors.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np

from sparsetrain.errors import DataError, shown


class RowError(DataError):
    """A `DataError` that keeps its reason, and its row, counted from the location's first row."""

    row: int | None = None
    reason = ""  # the message without the location


@dataclass(frozen=True)
class Location:
    """A range of rows, and possibly one of their columns.

    Attributes
    ----------
    name : str
        The file, or the name of a source in memory.
    row_group : int or None
        The row group of a parquet file.
    first_row : int
        Row of the file at which the range begins.
    column : str or None
        The column, if the location is in one.
    unit : str
        Unit of the numbers: "row" or "line".
    numbers : (n,) int64, optional
        The number of each row, if they are not consecutive.
    """

    name: str
    row_group: int | None = None
    first_row: int = 0
    column: str | None = None
    unit: str = "row"
    numbers: np.ndarray | None = field(default=None, compare=False)

    def of_column(self, column: str) -> Location:
        """Return the location of one column of the same rows."""
        # Constructed directly, since `replace` takes 7 us for each column of each piece.
        return Location(self.name, self.row_group, self.first_row, column, self.unit, self.numbers)

    def moved(self, rows: int) -> Location:
        """Return the location that begins `rows` rows later."""
        numbers = None if self.numbers is None else self.numbers[rows:]
        return replace(self, first_row=self.first_row + rows, numbers=numbers)

    def numbered(self, numbers: np.ndarray) -> Location:
        """Return the same location with the number of each of its rows."""
        return replace(self, numbers=numbers)

    def number(self, row: int) -> int:
        """Return the number in the file of a row, counted from the location's beginning."""
        return self.first_row + row if self.numbers is None else int(self.numbers[row])

    def row_numbers(self, rows: int) -> np.ndarray:
        """Return the number of each of the first `rows` rows, (rows,) int64."""
        follow = np.arange(self.first_row, self.first_row + rows)
        return follow if self.numbers is None else self.numbers[:rows]

    def error(self, reason: str, row: int | None = None) -> RowError:
        """Return an error about `row` (counted from `first_row`), for the caller to raise."""
        parts = [
            None if self.row_group is None else f"row group {self.row_group}",
            None if row is None else f"{self.unit} {self.number(row)}",
            None if self.column is None else f"column {shown(self.column)}",
        ]
        where = ", ".join(part for part in parts if part)
        error = RowError(f"{self.name}: {where}: {reason}" if where else f"{self.name}: {reason}")
        error.row, error.reason = row, reason
        return error

    def refuse(self, bad: np.ndarray, reason: Callable[[int], str]) -> None:
        """Raise an error about the first row where `bad` (n,) is true, if there is one."""
        if bad.any():
            row = int(np.argmax(bad))
            raise self.error(reason(row), row)
