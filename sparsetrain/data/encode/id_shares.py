# SPDX-License-Identifier: Apache-2.0
"""Shares of reserved ids among the ids read: missing, and rare or never seen.

A model knows nothing about such values, so a large share means that the data differ from the
training data. Encoders of already encoded data reserve no ids.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from sparsetrain.data.rows import Rows, by_feature
from sparsetrain.data.values.arrays import Array
from sparsetrain.errors import DataWarning
from sparsetrain.parsing.identity import MISSING, UNSEEN


class Share(NamedTuple):
    """A category column's number of ids read, and how many of them are reserved."""

    column: str
    ids: int
    missing: int
    unseen: int

    @property
    def missing_share(self) -> float:
        """Share of ids of missing values."""
        return self.missing / max(self.ids, 1)

    @property
    def unseen_share(self) -> float:
        """Share of ids of rare or unseen values."""
        return self.unseen / max(self.ids, 1)

    def lost_share(self, rare_in_training: float) -> float:
        """Share of values that are unknown here but would be known in rows like the training rows.

        Parameters
        ----------
        rare_in_training : float
            The vocabulary's `rare_share`.

        Returns
        -------
        float
            1 if no value is known, 0 if as many are known as in training, negative if more are.
        """
        known_then = 1 - rare_in_training
        known = 1 - self.unseen / max(self.ids - self.missing, 1)
        return 1 - known / known_then if known_then > 0 else 0.0


_ENOUGH = 100  # number of unknown values from which a column is reported


def warn_of_unknown(name: str, shares: Sequence[Share], columns: Sequence[Any]) -> None:
    """Warn of columns without a known value, if most training values were known."""
    for share, column in zip(shares, columns, strict=True):
        values = column.values
        there = share.ids - share.missing
        if there >= _ENOUGH and share.unseen == there and share.lost_share(values.rare_share) > 0.5:
            known = ", ".join(repr(value) for value in values.examples())
            warnings.warn(
                f"{name}: column {share.column}: all of its {there:,} values were rare or never "
                f"seen in training, where they were such as {known}: is it the same column, "
                "written the same way?",
                DataWarning,
                stacklevel=4,
            )


class ShareMeter:
    """Counts reserved ids; `add` every piece of rows, then read `shares`."""

    def __init__(self, columns: Sequence[str]) -> None:
        self._columns = tuple(columns)
        self._counts = np.zeros((3, len(self._columns)), dtype=np.int64)  # ids, missing, unseen

    def add(self, rows: Rows) -> None:
        """Count the ids of some rows."""
        if not self._columns:
            return
        for index, ids in enumerate(by_feature(rows.ids)):
            self._counts[:, index] += _count(ids)

    @property
    def shares(self) -> tuple[Share, ...]:
        """The shares of every column, in the order of the columns."""
        counts = self._counts.T.tolist()
        return tuple(Share(name, *count) for name, count in zip(self._columns, counts, strict=True))


def _count(ids: Array) -> tuple[int, ...]:
    counts = (np.count_nonzero(ids == reserved) for reserved in (MISSING, UNSEEN))
    return len(ids), *(int(count) for count in counts)
