# SPDX-License-Identifier: Apache-2.0
"""Shuffling in windows: the order of rows in an epoch, restartable at any row.

Without a seed, rows keep the order of the files. With a seed, `(seed, epoch)` determines the order:
the parts (row groups, or slices of a table) are permuted, the sequence of their rows is cut into
windows of equal size, and each window is permuted with its own random numbers. So an epoch can
start at any row after reading only the window of this row. A stream is a single part, so its rows
are mixed only within windows. Random numbers come from NumPy's default generator, which may change
between NumPy versions.

Pieces arrive by column; a window stores rows contiguously, so that gathering a row is one copy.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from sparsetrain.data.batch import Rows, concat_ids
from sparsetrain.data.ragged import Ragged
from sparsetrain.data.rows import PermutedRows
from sparsetrain.data.values.arrays import Array


def shuffled(
    windows: Iterable[Rows], key: Sequence[int], first_window: int = 0
) -> Iterator[PermutedRows]:
    """Yield each window from `first_window` on, with a random permutation of its rows.

    `key` holds the seed, the epoch and, if the epoch is divided into stretches, the stretch's
    number.
    """
    for number, window in enumerate(windows, first_window):
        rng = np.random.default_rng([*key, number])
        yield PermutedRows(window, rng.permutation(window.size))


_STRIP = 4096  # rows copied together, column by column; of 160 bytes each, so they stay in cache


class _Window:
    """Room for up to `capacity` rows, each contiguous in memory."""

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._arrays: dict[str, Array] = {}
        self._bags: list[tuple[Ragged, ...]] = []
        self.size = 0

    def add_(self, piece: Rows) -> None:
        """Append the rows of a piece."""
        begin, self.size = self.size, self.size + piece.size
        for name, values in piece._asdict().items():
            if isinstance(values, tuple):
                self._bags.append(values)
            elif values is not None:
                if name not in self._arrays:
                    shape = (self._capacity, *values.shape[1:])
                    self._arrays[name] = np.empty(shape, values.dtype)
                _copy_(self._arrays[name][begin : self.size], values)

    def rows(self) -> Rows:
        """Return all rows; views, except for bags."""
        found = {name: array[: self.size] for name, array in self._arrays.items()}
        ids = concat_ids(self._bags) if self._bags else found["ids"]
        return Rows(found["dense"], ids, found.get("labels"), found.get("weights"))


def _copy_(target: Array, source: Array) -> None:
    """Copy (n, F) into C order, strip by strip and column by column."""
    if source.flags.c_contiguous:
        target[:] = source
        return
    for start in range(0, len(source), _STRIP):
        strip = slice(start, start + _STRIP)
        for column, values in zip(target[strip].T, source[strip].T, strict=True):
            column[:] = values


def windows(pieces: Iterable[Rows], size: int) -> Iterator[Rows]:
    """Yield the rows of `pieces`, in order, in windows of `size`; the last may be smaller."""
    window = _Window(size)
    for piece in pieces:
        start = 0
        while start < piece.size:
            stop = min(piece.size, start + size - window.size)
            window.add_(piece.at(slice(start, stop)))
            start = stop
            if window.size == size:
                yield window.rows()
                window = _Window(size)
    if window.size:
        yield window.rows()
