# SPDX-License-Identifier: Apache-2.0
"""Workspace of a program: one block of memory, laid out once for each size of its inputs.

Buffers of equal size with disjoint lifetimes share memory. The block fits the largest inputs so
far; inputs with sizes seen before allocate nothing.

Precondition: one thread at a time, as for TVM's virtual machine; `Program` holds a lock.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from math import prod
from typing import Any, NamedTuple

import tvm
import tvm_ffi

from sparsetrain.runtime.tensors import NDArray, as_numpy, as_shape, empty

PAGE = 4096  # bytes; sizes are rounded up to it, as in TVM's pool
# Number of input sizes for which views are kept. Batches of lists have about a hundred different
# sizes, and creating their views took 5 % to 25 % of a step. The views of a size take a few
# kilobytes.
MAX_LAYOUTS = 256


class BufferLifetime(NamedTuple):
    """Size and lifetime of a temporary array of a program."""

    first: int  # first step of the program that uses it
    last: int
    within: int | None  # number of the array that it is a view of
    dtype: str
    shape: tuple[int, ...]

    @property
    def size(self) -> int:
        """Size in bytes."""
        return -(-prod(self.shape) * tvm_ffi.dtype(self.dtype).bits // 8)


class Workspace:
    """Temporary arrays of one program; `lifetimes` gives each array's size and lifetime."""

    def __init__(self, lifetimes: Callable[[Sequence[NDArray]], Sequence[BufferLifetime]]) -> None:
        self._lifetimes = lifetimes
        self._sizes: list[int] = []  # bytes of each buffer
        self._buffers: list[NDArray] = []  # spans of one block
        self._views: dict[Hashable, list[NDArray]] = {}  # by the sizes of inputs

    def arrays(self, sizes: Hashable, arguments: Sequence[NDArray]) -> list[NDArray]:
        """Return arrays for arguments of these sizes; calls with different sizes overwrite them."""
        arrays = self._views.get(sizes)
        if arrays is None:
            arrays = self._create_views(self._lifetimes(arguments))
            if len(self._views) >= MAX_LAYOUTS:
                del self._views[next(iter(self._views))]
            self._views[sizes] = arrays
        return arrays

    def _create_views(self, lifetimes: Sequence[BufferLifetime]) -> list[NDArray]:
        sizes = [lifetime.size for lifetime in lifetimes]
        if not self._sizes or any(new > old for new, old in zip(sizes, self._sizes, strict=True)):
            self._allocate_(lifetimes, sizes)
        return [
            self._buffers[number if lifetime.within is None else lifetime.within]._create_view(
                as_shape(lifetime.shape), lifetime.dtype
            )
            for number, lifetime in enumerate(lifetimes)
        ]

    def _allocate_(self, lifetimes: Sequence[BufferLifetime], sizes: Sequence[int]) -> None:
        """Allocate arrays of the larger of these sizes and the old ones."""
        largest = [max(each) for each in zip(sizes, self._sizes or sizes, strict=True)]
        self._views.clear()
        self._sizes, self._buffers = [], []  # frees the old block before the new one is allocated
        spans, total = layout(lifetimes, largest)
        block = as_numpy(empty((total,), "uint8", "the workspace of a program"), writable=True)
        self._buffers = [tvm.runtime.from_dlpack(block[begin:end]) for begin, end in spans]
        self._sizes = largest


def layout(
    lifetimes: Sequence[BufferLifetime], sizes: Sequence[int]
) -> tuple[list[tuple[int, int]], int]:
    """Lay out arrays of these sizes in bytes; return the span of each, and the total size.

    An array reuses the most recently freed span of equal size, in pages, since it is still in the
    cache. Filling gaps would take less memory and more time.
    """
    last = [lifetime.last for lifetime in lifetimes]
    for lifetime in lifetimes:
        if lifetime.within is not None:
            last[lifetime.within] = max(last[lifetime.within], lifetime.last)
    spans = [(0, PAGE)] * len(lifetimes)
    last_use: dict[tuple[int, int], int] = {}  # span -> last step that uses it
    total = 0
    for number in sorted(range(len(lifetimes)), key=lambda n: lifetimes[n].first):
        if lifetimes[number].within is not None:
            continue
        size = -(-max(sizes[number], 1) // PAGE) * PAGE
        free = [
            s for s in last_use if s[1] - s[0] == size and last_use[s] < lifetimes[number].first
        ]
        span = max(free, key=last_use.__getitem__, default=(total, total + size))
        total = max(total, span[1])
        last_use[span] = last[number]
        spans[number] = span
    return spans, total


def parse_lifetimes(rows: Sequence[Any], kinds: Sequence[str]) -> list[BufferLifetime]:
    """Read the rows that `HoistAllocations` writes; `kinds` are dtypes without their width."""
    lifetimes = []
    for row in rows:
        first, last, within, kind, bits, *shape = map(int, row)
        dtype = f"{kinds[kind]}{bits}"
        lifetimes.append(
            BufferLifetime(first, last, None if within < 0 else within, dtype, tuple(shape))
        )
    return lifetimes
