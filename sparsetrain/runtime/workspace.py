# SPDX-License-Identifier: Apache-2.0
"""The memory that a program works in: one block, laid out once for each size of its inputs.

Arrays of one size that are not in use at the same time share memory. The block is as large as the
largest inputs so far needed it; for inputs of sizes that were seen before nothing is made.

Precondition: one thread at a time, as TVM's virtual machine demands too; `Program` sees to it.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from math import prod
from typing import Any, NamedTuple

import tvm
import tvm_ffi

from sparsetrain.runtime.tensors import NDArray, as_numpy, as_shape, empty

PAGE = 4096  # bytes: what an array takes is a multiple, as in TVM's pool
MAX_LAYOUTS = 8  # sizes of inputs whose arrays are kept


class BufferLifetime(NamedTuple):
    """An array that a program works in.

    Parameters
    ----------
    first, last : int
        Between which steps of the program it is in use, both included.
    within : int or None
        The number of another array whose memory it shows in another shape.
    dtype : str
    shape : tuple of int
    """

    first: int
    last: int
    within: int | None
    dtype: str
    shape: tuple[int, ...]

    @property
    def size(self) -> int:
        """Bytes."""
        return -(-prod(self.shape) * tvm_ffi.dtype(self.dtype).bits // 8)


class Workspace:
    """The arrays of one program.

    Parameters
    ----------
    needs : callable
        Gives, for the program's arguments, what it works in.
    """

    def __init__(self, needs: Callable[[Sequence[NDArray]], Sequence[BufferLifetime]]) -> None:
        self._needs = needs
        self._sizes: list[int] = []  # bytes that the places have room for
        self._places: list[NDArray] = []  # spans of one block
        self._known: dict[Hashable, list[NDArray]] = {}

    def arrays(self, sizes: Hashable, arguments: Sequence[NDArray]) -> list[NDArray]:
        """Those for arguments of some sizes; the next call with other sizes writes into them."""
        known = self._known.get(sizes)
        if known is None:
            known = self._views(self._needs(arguments))
            if len(self._known) >= MAX_LAYOUTS:
                del self._known[next(iter(self._known))]
            self._known[sizes] = known
        return known

    def _views(self, needs: Sequence[BufferLifetime]) -> list[NDArray]:
        sizes = [need.size for need in needs]
        if not self._sizes or any(new > old for new, old in zip(sizes, self._sizes, strict=True)):
            self._make_room_(needs, sizes)
        return [
            self._places[number if need.within is None else need.within]._create_view(
                as_shape(need.shape), need.dtype
            )
            for number, need in enumerate(needs)
        ]

    def _make_room_(self, needs: Sequence[BufferLifetime], sizes: Sequence[int]) -> None:
        """Lay out arrays of these sizes, or of those before where they were larger."""
        wanted = [max(each) for each in zip(sizes, self._sizes or sizes, strict=True)]
        self._known.clear()
        self._sizes, self._places = [], []  # the old block goes before the new one comes
        spans, whole = layout(needs, wanted)
        block = as_numpy(empty((whole,), "uint8", "what a program works in"), writable=True)
        self._places = [tvm.runtime.from_dlpack(block[begin:end]) for begin, end in spans]
        self._sizes = wanted


def layout(
    needs: Sequence[BufferLifetime], sizes: Sequence[int]
) -> tuple[list[tuple[int, int]], int]:
    """Where arrays of so many bytes lie that do not meet, begin and end, and the bytes of all.

    An array gets the place of the one of its size, in pages, that was in use last: its lines are
    still in the cache. Filling gaps instead takes less memory and more time.
    """
    last = [need.last for need in needs]
    for need in needs:
        if need.within is not None:
            last[need.within] = max(last[need.within], need.last)
    spans = [(0, PAGE)] * len(needs)
    latest: dict[tuple[int, int], int] = {}  # of each place: when it is in use for the last time
    whole = 0
    for number in sorted(range(len(needs)), key=lambda n: needs[n].first):
        if needs[number].within is not None:
            continue
        size = -(-max(sizes[number], 1) // PAGE) * PAGE
        free = [s for s in latest if s[1] - s[0] == size and latest[s] < needs[number].first]
        span = max(free, key=latest.__getitem__, default=(whole, whole + size))
        whole = max(whole, span[1])
        latest[span] = last[number]
        spans[number] = span
    return spans, whole


def parse_lifetimes(rows: Sequence[Any], kinds: Sequence[str]) -> list[BufferLifetime]:
    """Translate the needs that `KeepMemory` writes for a program; `kinds` are of numbers."""
    needs = []
    for row in rows:
        first, last, within, kind, bits, *shape = map(int, row)
        dtype = f"{kinds[kind]}{bits}"
        needs.append(
            BufferLifetime(first, last, None if within < 0 else within, dtype, tuple(shape))
        )
    return needs
