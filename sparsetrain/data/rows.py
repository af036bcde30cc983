# SPDX-License-Identifier: Apache-2.0
"""Encoded rows on their way from pieces to batches: regrouped, permuted, counted; own batches.

Operations work on whole arrays and do not change the values in a row.

`ShareMeter` counts reserved ids: missing, and rare or never seen. A model knows nothing about such
values, so a large share means that the data differ from the training data. Encoders of already
encoded data reserve no ids.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

import numpy as np

from sparsetrain.data.batch import Batch, Rows, by_feature, concat_rows
from sparsetrain.data.values.arrays import Array
from sparsetrain.errors import DataError, DataWarning
from sparsetrain.parsing.identity import MISSING, UNSEEN


class PermutedRows(NamedTuple):
    """Rows of a window in a different order, not gathered yet.

    Gathering batch by batch keeps the memory in cache; the whole window is never gathered.

    Attributes
    ----------
    window : Rows
    order : (n,) int64
        Distinct row numbers in the window.
    """

    window: Rows
    order: Array

    @property
    def size(self) -> int:
        """Number of rows, n."""
        return len(self.order)

    def at(self, index: slice) -> PermutedRows:
        """Return the rows at `index`, as a view."""
        return PermutedRows(self.window, self.order[index])

    def plain(self) -> Rows:
        """Gather the rows."""
        return self.window.at(self.order)


Piece = TypeVar("Piece", Rows, PermutedRows)


def regroup(pieces: Iterable[Rows | PermutedRows], size: int) -> Iterator[Rows]:
    """Yield the rows of `pieces`, in order, in groups of `size`; the last may be smaller.

    Permuted pieces are gathered before the next piece is read.
    """
    open_: list[Rows] = []
    missing = size
    for piece in pieces:
        start = 0
        while piece.size - start >= missing:
            yield concat_rows([*open_, piece.at(slice(start, start + missing)).plain()])
            start, open_, missing = start + missing, [], size
        if start < piece.size:
            open_.append(piece.at(slice(start, None)).plain())
            missing -= piece.size - start
    if open_:
        yield concat_rows(open_)


def skip_rows(pieces: Iterable[Piece], count: int) -> Iterator[Piece]:
    """Yield the rows of `pieces` after the first `count`."""
    for piece in pieces:
        if count < piece.size:
            yield piece.at(slice(count, None)) if count else piece
        count = max(0, count - piece.size)


def first_rows(pieces: Iterable[Piece], count: int) -> Iterator[Piece]:
    """Yield the first `count` rows of `pieces`; later pieces are not read."""
    for piece in pieces if count > 0 else ():
        yield piece if piece.size <= count else piece.at(slice(count))
        count -= piece.size
        if count <= 0:
            return


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


@dataclass(frozen=True)
class BatchSource:
    """A user's own batches, of any size and in any order.

    Attributes
    ----------
    name : str
    items : iterable of Batch
    """

    name: str
    items: Iterable[Any]

    num_rows = None

    def batches(self) -> Iterator[Batch]:
        """Yield the batches.

        Raises
        ------
        DataError
            If an item is not a `Batch`, or there are no items, for example when an iterator is read
            twice.
        """
        index = -1
        for index, item in enumerate(self.items):
            if not isinstance(item, Batch):
                raise DataError(
                    f"{self.name}: item {index} is a {type(item).__name__}; it must be a Batch: "
                    f"{_as_batch(item)}"
                )
            yield item
        if index < 0:
            raise DataError(
                f"{self.name}: no batches; an iterator can be read only once, "
                "give a list or an object whose __iter__ starts anew"
            )


def _as_batch(item: Any) -> str:
    """Describe how to make a batch of an item."""
    if isinstance(item, (list, tuple)):
        return "(Batch(*arrays) for arrays in ...) makes batches of dense, ids and labels"
    if isinstance(item, Mapping):
        return (
            "(encoder.encode(table) for table in ...) makes a batch of each dict of columns; rows "
            "that are dicts can be given as a list, [*rows]"
        )
    return (
        "(encoder.encode(table) for table in ...) makes a batch of each table; to read one table, "
        "give a DataFrame, an Arrow table or a dict of columns itself"
    )
