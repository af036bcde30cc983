# SPDX-License-Identifier: Apache-2.0
"""Shuffling in windows: the order of rows in an epoch, restartable at any row.

Without a seed, rows keep the order of the files. With one, `(seed, epoch)` decides: the parts (row
groups, or slices of a table) are permuted, the sequence of their rows is cut into windows of equal
size, and each window is permuted with its own random numbers. So starting at a row needs only its
window. A stream has one part, so only the windows mix it. Numbers come from NumPy's default
generator, which may change between NumPy versions.

Pieces arrive by column; a window stores rows contiguously, so that gathering a row is one copy.
Window memory is reused: the first touch of 40 MB of new pages costs as much as encoding several
batches.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from queue import SimpleQueue

import numpy as np

from sparsetrain.data.encode.bags import Bags, concat_bags
from sparsetrain.data.encode.encoded_rows import Ids, PermutedRows, Rows
from sparsetrain.data.values.arrays import Array


def part_order(num_parts: int, seed: int | None, epoch: int) -> Sequence[int]:
    """Return the numbers of the parts in the order in which they are read."""
    if seed is None:
        return range(num_parts)
    order: list[int] = np.random.default_rng([seed, epoch]).permutation(num_parts).tolist()
    return order


def skip_parts(
    order: Sequence[int], num_rows: Sequence[int | None], row: int
) -> tuple[Sequence[int], int]:
    """Return what is left of `order` after `row` rows, and rows to skip in the first part left.

    A part of unknown length is never skipped whole: its rows have to be read to be counted.
    """
    for index, part in enumerate(order):
        rows = num_rows[part]
        if rows is None or row < rows:
            return order[index:], row
        row -= rows
    return [], row


def shuffled(
    windows: Iterable[Rows], key: Sequence[int], first_window: int = 0
) -> Iterator[PermutedRows]:
    """Yield each window, the first of which is window `first_window`, with a permutation.

    `key` is the seed, the epoch and, of several stretches of its rows, the number of one.
    """
    for number, window in enumerate(windows, first_window):
        rng = np.random.default_rng([*key, number])
        yield PermutedRows(window, rng.permutation(window.size))


_STRIP = 4096  # rows, of which every column is written to the same lines of memory: 160 bytes each


class Window:
    """Room for up to `capacity` rows."""

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._arrays: dict[str, Array] = {}
        self._bags: list[tuple[Bags, ...]] = []
        self.size = 0

    def clear_(self) -> None:
        """Make room; what `rows` returned is no longer to be read."""
        self.size = 0
        self._bags.clear()

    def add_(self, piece: Rows) -> None:
        """Write the rows of a piece after those that are there."""
        begin, self.size = self.size, self.size + piece.size
        for name, values in piece._asdict().items():
            if isinstance(values, tuple):
                self._bags.append(values)
            elif values is not None:
                _copy_(self._array(name, values)[begin : self.size], values)

    def rows(self) -> Rows:
        """Return all rows, as views where they are not bags."""
        found = {name: array[: self.size] for name, array in self._arrays.items()}
        ids: Ids = (
            tuple(concat_bags(list(feature)) for feature in zip(*self._bags, strict=True))
            if self._bags
            else found["ids"]
        )
        return Rows(found["dense"], ids, found.get("labels"), found.get("weights"))

    def _array(self, name: str, like: Array) -> Array:
        if name not in self._arrays:
            self._arrays[name] = np.empty((self._capacity, *like.shape[1:]), like.dtype)
        return self._arrays[name]


def _copy_(target: Array, source: Array) -> None:
    """Copy (n, F) into C order, strip by strip and column by column."""
    if source.flags.c_contiguous:
        target[:] = source
        return
    for start in range(0, len(source), _STRIP):
        strip = slice(start, start + _STRIP)
        for column, values in zip(target[strip].T, source[strip].T, strict=True):
            column[:] = values


class WindowPool:
    """A fixed number of windows; whoever needs one more waits until one is given back."""

    def __init__(self, count: int, capacity: int) -> None:
        self._free: SimpleQueue[Window | None] = SimpleQueue()
        self._lent: deque[Window] = deque()
        for _ in range(count):
            self._free.put(Window(capacity))

    def take(self) -> Window | None:
        """Wait for an empty window; None if no more are wanted."""
        window = self._free.get()
        if window is not None:
            self._lent.append(window)
        return window

    def give(self) -> None:
        """Give the window back that was taken first: its rows are no longer read."""
        window = self._lent.popleft()
        window.clear_()
        self._free.put(window)

    def close(self) -> None:
        """Let whoever waits for a window go."""
        self._free.put(None)


def windows(pieces: Iterable[Rows], size: int, spare: WindowPool) -> Iterator[Rows]:
    """Yield the rows of `pieces`, in order, in windows of `size`; the last may be smaller.

    A window's rows are there until it is given back to `spare`.
    """
    window: Window | None = None
    for piece in pieces:
        start = 0
        while start < piece.size:
            window = window or spare.take()
            if window is None:
                return
            stop = min(piece.size, start + size - window.size)
            window.add_(piece.at(slice(start, stop)))
            start = stop
            if window.size == size:
                yield window.rows()
                window = None
    if window is not None:
        yield window.rows()
