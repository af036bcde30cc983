# SPDX-License-Identifier: Apache-2.0
"""Encoded rows on their way from pieces to batches: shuffle them in a buffer, cut them to size.

Both work on whole arrays and own what they hold; neither changes a row. Memory: the buffer's rows
and one piece.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

import numpy as np

from .batch import Batch
from .convert import Array


class Rows(NamedTuple):
    """n encoded rows: dense (n, F_dense) float32, ids (n, F) int64, labels (n,) float32 or None."""

    dense: Array
    ids: Array
    labels: Array | None

    @property
    def size(self) -> int:
        """Rows, n."""
        return len(self.dense)

    def at(self, index: Array | slice) -> Rows:
        """Return the rows at `index`: a view for a slice, a copy for an array."""
        return Rows(
            self.dense[index], self.ids[index], None if self.labels is None else self.labels[index]
        )

    def put(self, index: Array, rows: Rows) -> None:
        """Overwrite the rows at `index`."""
        self.dense[index] = rows.dense
        self.ids[index] = rows.ids
        if self.labels is not None:
            self.labels[index] = rows.labels

    def batch(self) -> Batch:
        """Return the rows as a batch that shares their memory."""
        return Batch._trusted(self.dense, self.ids, self.labels)


def joined(pieces: list[Rows]) -> Rows:
    """Return the rows of all pieces, in order."""
    if len(pieces) == 1:
        return pieces[0]
    dense, ids, labels = zip(*pieces, strict=True)
    return Rows(
        np.concatenate(dense),
        np.concatenate(ids),
        None if labels[0] is None else np.concatenate(labels),
    )


def shuffled(pieces: Iterable[Rows], buffer_rows: int, rng: np.random.Generator) -> Iterator[Rows]:
    """Yield the rows of `pieces` in random order, as far as a buffer can mix them.

    The buffer takes pieces until it holds at least `buffer_rows`. From then on every further piece
    of n rows changes places with n rows drawn from the buffer at random (all of them, if it holds
    fewer), and those go out, in random order. At the end the buffer goes out, permuted.
    """
    pieces = iter(pieces)
    first, held = [], 0
    for piece in pieces:
        first.append(piece)
        held += piece.size
        if held >= buffer_rows:
            break
    if not first:
        return
    buffer = joined(first)
    if len(first) == 1:
        buffer = buffer.at(np.arange(held))
    del first
    for piece in pieces:
        chosen = rng.choice(held, size=min(piece.size, held), replace=False)
        outgoing = buffer.at(chosen)
        buffer.put(chosen, piece.at(slice(0, len(chosen))))
        yield outgoing
        if piece.size > held:
            yield piece.at(slice(held, None))
    order = rng.permutation(held)
    for start in range(0, held, _OUT_ROWS):
        yield buffer.at(order[start : start + _OUT_ROWS])


_OUT_ROWS = 16_384


def batched(pieces: Iterable[Rows], batch_size: int, drop_last: bool) -> Iterator[Batch]:
    """Yield batches of `batch_size` rows, in order, and the rest unless it is dropped."""
    open_: list[Rows] = []
    missing = batch_size
    for piece in pieces:
        start = 0
        while piece.size - start >= missing:
            yield joined([*open_, piece.at(slice(start, start + missing))]).batch()
            start, open_, missing = start + missing, [], batch_size
        if start < piece.size:
            open_.append(piece.at(slice(start, None)))
            missing -= piece.size - start
    if open_ and not drop_last:
        yield joined(open_).batch()
