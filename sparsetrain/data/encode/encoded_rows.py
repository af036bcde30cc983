# SPDX-License-Identifier: Apache-2.0
"""`Rows`: encoded rows on their way from pieces to batches: joined, regrouped, permuted.

Operations work on whole arrays and change no row. Ids are int32 here and int64 in the batch. A
piece is stored by column, a batch by row.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple, TypeVar

import numpy as np

from sparsetrain.data.ids import (
    Ids,
    concat_ids,
    rows_at,
    take_ids,
)
from sparsetrain.data.values.arrays import Array


class Rows(NamedTuple):
    """n encoded rows.

    Attributes
    ----------
    dense : (n, F_dense) float32
    ids : (n, F) int32, or F `Ragged` of n bags each
    labels : (n,) or (n, T) float32 or None
    weights : (n,) float32 or None
    """

    dense: Array
    ids: Ids
    labels: Array | None
    weights: Array | None = None

    @property
    def size(self) -> int:
        """Rows, n."""
        return len(self.dense)

    def at(self, index: Array | slice) -> Rows:
        """Return the rows at `index`: a view for a slice if possible, a copy for an array."""
        labels, weights = (
            None if array is None else rows_at(array, index)
            for array in (self.labels, self.weights)
        )
        return Rows(rows_at(self.dense, index), take_ids(self.ids, index), labels, weights)

    def plain(self) -> Rows:
        """Return the rows themselves; see `PermutedRows`."""
        return self


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
        """Rows, n."""
        return len(self.order)

    def at(self, index: slice) -> PermutedRows:
        """Return the rows at `index`, as a view."""
        return PermutedRows(self.window, self.order[index])

    def plain(self) -> Rows:
        """Gather the rows."""
        return self.window.at(self.order)


Piece = TypeVar("Piece", Rows, PermutedRows)


def concat_rows(pieces: list[Rows]) -> Rows:
    """Return the rows of all pieces, in order."""
    if len(pieces) == 1:
        return pieces[0]
    dense, ids, labels, weights = zip(*pieces, strict=True)
    return Rows(
        np.concatenate(dense),
        concat_ids(ids),
        None if labels[0] is None else np.concatenate(labels),
        None if weights[0] is None else np.concatenate(weights),
    )


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
