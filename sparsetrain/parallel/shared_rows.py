# SPDX-License-Identifier: Apache-2.0
"""`SharedRows`: an epoch's batches; each rank reads only the parts that it computes.

An epoch's rows are cut into K stretches, and a batch takes the next rows of each stretch. So a
batch depends on K, not on the number of ranks. If a source has unknown length, or a user passes
batches, every rank reads all rows.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from typing import Any

from sparsetrain.data import Batch, Dataset
from sparsetrain.data.batch import Position, micro_batches
from sparsetrain.data.stream.dataset import BUFFER_ROWS, Stretch
from sparsetrain.errors import DataWarning
from sparsetrain.parallel.alike import require_same
from sparsetrain.parallel.comm import Comm

STRETCH_BUFFER_ROWS = BUFFER_ROWS // 4  # rows in the shuffle window of each stretch


class Share:
    """A rank's parts of a batch.

    Parameters
    ----------
    parts : mapping of int to Batch
        Number of a part -> its rows, for this rank's parts that have rows.
    sizes : sequence of K int
        Number of rows of every part of the batch.
    position : Position, optional
        Where the next batch begins.
    """

    labels = None  # no rank has the labels of the whole batch

    def __init__(
        self, parts: Mapping[int, Batch], sizes: Sequence[int], position: Position | None
    ) -> None:
        self.parts, self.sizes, self.position = parts, sizes, position

    def __len__(self) -> int:
        """Return the number of rows of the whole batch."""
        return sum(self.sizes)

    def first_row(self, part: int) -> int:
        """Return the number of the batch's rows that come before a part."""
        return sum(self.sizes[:part])


def cut(batch: Batch, parts: int, own: range) -> Share:
    """Cut a batch that every rank has into nearly equal parts; return the rank's `own` parts."""
    edges = [len(batch) * part // parts for part in range(parts + 1)]
    sizes = [end - first for first, end in zip(edges, edges[1:], strict=False)]
    filled = (part for part, size in enumerate(sizes) if size)
    pieces = zip(filled, micro_batches(batch, parts), strict=True)
    return Share({part: piece for part, piece in pieces if part in own}, sizes, batch.position)


class SharedRows:
    """The training rows of one rank; see `Dataset`.

    Parameters
    ----------
    dataset : Dataset
    comm : Comm
    parts : int
        K, the number of parts; it divides every batch size.
    own : range
        The parts that this rank computes.
    """

    def __init__(self, dataset: Dataset, comm: Comm, parts: int, own: range) -> None:
        self._dataset, self._comm, self._parts, self._own = dataset, comm, parts, own
        self.num_rows = dataset.num_rows
        if self.num_rows is None and dataset.id_shares and comm.size > 1 and comm.rank == 0:
            warnings.warn(
                "the number of rows is unknown until the end, so every rank reads all rows: run "
                "`sparsetrain convert` first, and each rank reads only its own",
                DataWarning,
                stacklevel=4,
            )

    def batches(
        self, batch_size: int, *, seed: int | None, epoch: int, position: Position
    ) -> Iterator[Share]:
        """Yield the rank's share of each batch of one epoch, from `position` on."""
        if self.num_rows is None:
            options: dict[str, Any] = {"seed": seed, "epoch": epoch, "position": position}
            return self._alike(self._dataset.batches(batch_size, **options))
        return self._own_parts(batch_size // self._parts, seed, position, self.num_rows)

    def _own_parts(
        self, size: int, seed: int | None, start: Position, total: int
    ) -> Iterator[Share]:
        stretches = [Stretch(number, self._parts) for number in range(self._parts)]
        left = [len(each.rows(total)) - start.row // self._parts for each in stretches]
        streams = {
            part: self._stream(stretches[part], size, seed, start)
            for part in self._own
            if left[part] > 0
        }
        row = start.row
        for number in range(start.batch + 1, start.batch + 1 + -(-max(left) // size)):
            sizes = [min(size, max(rows, 0)) for rows in left]
            left = [rows - size for rows in left]
            row += sum(sizes)
            ends = max(left) <= 0
            position = Position(start.epoch + 1) if ends else Position(start.epoch, row, number)
            pieces = {part: next(each) for part, each in streams.items() if sizes[part]}
            yield Share(pieces, sizes, position)

    def _stream(
        self, stretch: Stretch, size: int, seed: int | None, start: Position
    ) -> Iterator[Batch]:
        return self._dataset.batches(
            size,
            seed=seed,
            position=Position(start.epoch, start.row // self._parts, start.batch),
            buffer_rows=BUFFER_ROWS if self._parts == 1 else STRETCH_BUFFER_ROWS,
            stretch=stretch,
        )

    def _alike(self, batches: Iterator[Batch]) -> Iterator[Share]:
        """Yield the rank's share of batches that all ranks have."""
        for batch in chain(batches, [None]):
            require_same([batch] if batch else [], self._comm)
            if batch:
                yield cut(batch, self._parts, self._own)
