# SPDX-License-Identifier: Apache-2.0
"""In which order the rows of an epoch come, so that reading can begin anywhere in it.

Without a seed, that of the file. With one, `(seed, epoch)` alone decides: the parts (row groups, or
slices of a table) are put in a random order, the sequence of their rows is cut into windows of
equal size, and each window is permuted by random numbers of its own. So to begin at a row, only its
window has to be read. A stream has one part, so only the windows mix it. Numbers are drawn from
NumPy's default generator, which may change between NumPy versions.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from sparsetrain.data.encode.rows import Mixed, Rows


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
    windows: Iterable[Rows], seed: int, epoch: int, first_window: int = 0
) -> Iterator[Mixed]:
    """Yield each window, the first of which is window `first_window`, with a permutation."""
    for number, window in enumerate(windows, first_window):
        rng = np.random.default_rng([seed, epoch, number])
        yield Mixed(window, rng.permutation(window.size))
