# SPDX-License-Identifier: Apache-2.0
"""Windows: the rows that a shuffle mixes at a time, in memory that is used again and again.

Pieces come column by column; in a window a row's numbers lie side by side, since it is gathered
with one copy then, and its columns with one each. A piece is written as soon as it is there, so no
more than one is held. Memory is used again because the system hands out pages one by one: a core
spends as long on 40 MB of new ones as on encoding several batches.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from queue import SimpleQueue

import numpy as np

from sparsetrain.data.encode.bags import Bags, joined_bags
from sparsetrain.data.encode.rows import Ids, Rows
from sparsetrain.data.values.arrays import Array

_STRIP = 4096  # rows, of which every column is written to the same lines of memory: 160 bytes each


class Window:
    """Room for rows.

    Parameters
    ----------
    capacity : int
        The most rows.
    """

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
        """Return all rows, as views where they are no bags."""
        found = {name: array[: self.size] for name, array in self._arrays.items()}
        ids: Ids = (
            tuple(joined_bags(list(feature)) for feature in zip(*self._bags, strict=True))
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


class Spare:
    """Windows that are free: as many as there are, whoever needs one more waits.

    Parameters
    ----------
    count, capacity : int
        How many windows, of how many rows each.
    """

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


def windows(pieces: Iterable[Rows], size: int, spare: Spare) -> Iterator[Rows]:
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
