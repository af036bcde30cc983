# SPDX-License-Identifier: Apache-2.0
"""Where everything lies when a convolution is computed as products of shifted rows.

One example's side that is read becomes *rows*: of each channel as many as a stride has *phases*
(the even places, the odd ones), on a grid of positions that has the padding in it. Then a window's
tap is a row and an *offset*: what position `n` needs by a tap lies at position `n` plus the offset,
whatever the stride, the dilation and the number of dimensions. All that differs between
convolutions is in tables that are made here.

Axes are made one by one and put together by `beside`: the positions of an example count through
all axes, so windows over the end of a line are computed too, of neighbours that do not belong
together, and never read.
"""

from __future__ import annotations

from collections import defaultdict
from functools import reduce
from itertools import product
from typing import NamedTuple, TypeAlias

import numpy as np

from sparsetrain.ops.windows import Windows

# Of the small and of the large side, for each of their axes.
Places: TypeAlias = tuple[list[int], list[int]]

NOWHERE = -1


class Taps(NamedTuple):
    """Phases of the result that see the same rows at the same offsets: one product computes them.

    Parameters
    ----------
    phases : list of int
        Of the result.
    terms : list of pair of int
        What each phase is summed over: a phase of the source, and an offset.
    numbers : ndarray (phases, terms) int
        By which tap of the window each sees it.
    """

    phases: list[int]
    terms: list[tuple[int, int]]
    numbers: np.ndarray


class Grid(NamedTuple):
    """Positions, and what lies there.

    Parameters
    ----------
    length : int
        Positions of an example.
    source : ndarray (phases, length) int
        Which place of the source lies there, or `NOWHERE`: a zero.
    taps : list of Taps
        What is summed up.
    out : ndarray (places of the result, 2) int
        Phase and position of each place; the phase may be one that nothing is summed for.
    counts : tuple of int
        Places of the source, taps of a window and phases of the result.
    """

    length: int
    source: np.ndarray
    taps: list[Taps]
    out: np.ndarray
    counts: tuple[int, int, int]


def reading(windows: Windows, places: Places, window: list[int]) -> Grid:
    """From the large side to the small: of each stride's phases, those that a tap falls on."""

    def axis(small: int, large: int, taps: int, stride: int, dilation: int, padding: int) -> Grid:
        stride = _stride(small, taps, stride, dilation)
        reach = [tap * dilation for tap in range(taps)]
        phases = sorted({far % stride for far in reach})
        length = small + reach[-1] // stride
        seen = np.array(phases)[:, None] + np.arange(length) * stride - padding
        terms = [(phases.index(far % stride), far // stride) for far in reach]
        out = np.stack([np.zeros(small, int), np.arange(small)], 1)
        sums = [Taps([0], terms, np.arange(taps)[None])]
        return Grid(length, _existing(seen, large), sums, out, (large, taps, 1))

    return reduce(beside, map(axis, *places, window, *windows))


def spreading(windows: Windows, places: Places, window: list[int]) -> Grid:
    """From the small side to the large: each phase of a stride is seen by taps of its own."""

    def axis(small: int, large: int, taps: int, stride: int, dilation: int, padding: int) -> Grid:
        stride = _stride(small, taps, stride, dilation)
        widest, first = (taps - 1) * dilation // stride, padding // stride
        length = (large - 1 + padding) // stride - first + 1 + widest
        read = np.arange(length)[None] + first - widest
        seen = np.arange(large) + padding
        out = np.stack([seen % stride, seen // stride - first], 1)
        alike = defaultdict(list)
        for phase in range(stride):
            found = [tap for tap in range(taps) if tap * dilation % stride == phase]
            offsets = tuple(widest - tap * dilation // stride for tap in found)
            if found:
                alike[offsets].append((phase, found))
        sums = [
            Taps(
                [phase for phase, _ in members],
                [(0, offset) for offset in offsets],
                np.array([found for _, found in members]),
            )
            for offsets, members in alike.items()
        ]
        return Grid(length, _existing(read, small), sums, out, (small, taps, stride))

    return reduce(beside, map(axis, *places, window, *windows))


def run_of(places: np.ndarray) -> int:
    """The longest lines, of one length, that are neighbours each, or all `NOWHERE`.

    `places` has a row for each phase, which lines do not go over. No line is longer than all there
    is to read: that of zeros reads too.
    """
    extent, existing = places.shape[-1], int(places.max()) + 1
    for run in (n for n in range(min(extent, existing), 1, -1) if extent % n == 0):
        lines = places.reshape(-1, run)
        begins = lines[:, :1]
        if np.all(lines == np.where(begins < 0, NOWHERE, begins + np.arange(run))):
            return run
    return 1


def _stride(small: int, taps: int, stride: int, dilation: int) -> int:
    """A single window may have any stride: by one as long as itself, no position is in vain."""
    return stride if small > 1 else (taps - 1) * dilation + 1


def _existing(places: np.ndarray, extent: int) -> np.ndarray:
    return np.where((places >= 0) & (places < extent), places, NOWHERE)


def beside(outer: Grid, inner: Grid) -> Grid:
    """The grid of both axes; places, taps and phases count through the outer one first."""
    sources, taps, phases = inner.counts
    rows = len(inner.source)
    left = outer.source[:, None, :, None]
    right = inner.source[None, :, None, :]
    source = np.where((left < 0) | (right < 0), NOWHERE, left * sources + right)
    sums = [
        Taps(
            [p * phases + q for p, q in product(a.phases, b.phases)],
            [
                (f * rows + g, at * inner.length + by)
                for (f, at), (g, by) in product(a.terms, b.terms)
            ],
            (a.numbers[:, None, :, None] * taps + b.numbers[None, :, None, :]).reshape(
                len(a.phases) * len(b.phases), -1
            ),
        )
        for a, b in product(outer.taps, inner.taps)
    ]
    steps = np.array([phases, inner.length])
    out = outer.out[:, None] * steps + inner.out[None]
    return Grid(
        outer.length * inner.length,
        source.reshape(len(outer.source) * rows, -1),
        sums,
        out.reshape(-1, 2),
        (outer.counts[0] * sources, outer.counts[1] * taps, outer.counts[2] * phases),
    )
