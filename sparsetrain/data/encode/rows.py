# SPDX-License-Identifier: Apache-2.0
"""Encoded rows on their way from pieces to batches: joined, cut to size, mixed.

Everything works on whole arrays and owns what it holds; nothing changes a row. Ids are int32 here,
which every table allows, and int64 in the batch.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

import numpy as np

from ..batch import Batch
from ..values.arrays import Array
from .bags import Bags, joined_bags

Ids = Array | tuple[Bags, ...]


class Rows(NamedTuple):
    """n encoded rows.

    Attributes
    ----------
    dense : (n, F_dense) float32
    ids : (n, F) int32, or F `Bags` of n bags each
    labels : (n,) float32 or None
    """

    dense: Array
    ids: Ids
    labels: Array | None

    @property
    def size(self) -> int:
        """Rows, n."""
        return len(self.dense)

    def at(self, index: Array | slice) -> Rows:
        """Return the rows at `index`: a view for a slice where that can be, a copy for an array."""
        ids: Ids = (
            tuple(bags.at(index) for bags in self.ids)
            if isinstance(self.ids, tuple)
            else self.ids[index]
        )
        return Rows(self.dense[index], ids, None if self.labels is None else self.labels[index])

    def batch(self) -> Batch:
        """Return the rows as a batch; dense and labels may share their memory."""
        if isinstance(self.ids, tuple):
            return Batch._trusted(
                self.dense, tuple(bags.ragged() for bags in self.ids), self.labels
            )
        return Batch._trusted(self.dense, self.ids.astype(np.int64), self.labels)


def joined(pieces: list[Rows]) -> Rows:
    """Return the rows of all pieces, in order."""
    if len(pieces) == 1:
        return pieces[0]
    dense, ids, labels = zip(*pieces, strict=True)
    return Rows(
        np.concatenate(dense),
        tuple(joined_bags(list(feature)) for feature in zip(*ids, strict=True))
        if isinstance(ids[0], tuple)
        else np.concatenate(ids),
        None if labels[0] is None else np.concatenate(labels),
    )


def regrouped(pieces: Iterable[Rows], size: int) -> Iterator[Rows]:
    """Yield the rows of `pieces`, in order, in groups of `size`; the last may be smaller."""
    open_: list[Rows] = []
    missing = size
    for piece in pieces:
        start = 0
        while piece.size - start >= missing:
            yield joined([*open_, piece.at(slice(start, start + missing))])
            start, open_, missing = start + missing, [], size
        if start < piece.size:
            open_.append(piece.at(slice(start, None)))
            missing -= piece.size - start
    if open_:
        yield joined(open_)


def without_first(pieces: Iterable[Rows], count: int) -> Iterator[Rows]:
    """Yield the rows of `pieces` but the first `count`."""
    for piece in pieces:
        if count < piece.size:
            yield piece.at(slice(count, None)) if count else piece
        count = max(0, count - piece.size)
