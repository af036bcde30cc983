# SPDX-License-Identifier: Apache-2.0
"""Steps on a large table that was filled just now, until they do not become shorter any more.

Filling a table leaves the caches full of its end, and empty of the pages' own table. In a virtual
machine the first thousands of reads at random places also wait for the host, which finds out only
then how to keep those pages: a step on 6.4 GB begins ten times as long as it ends. A training run
is past that after a second, so these steps do not count; what the first ones took is told.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from math import inf
from statistics import median

FROM_BYTES = 2**25  # of a table; smaller ones lie in the caches
BLOCK = 25  # steps whose median counts as one
PATIENCE = 8  # blocks in which nothing was won but `FALL`
FALL = 0.02
SECONDS = 1.5

Take = Callable[[int], Sequence[float]]  # take so many steps; seconds of each


def settle(
    take: Take, table_bytes: int, clock: Callable[[], float] = time.monotonic
) -> list[float]:
    """Take steps while they become shorter; return the seconds of all, of a small table none."""
    taken: list[float] = []
    before, since, end = inf, 0, clock() + SECONDS
    while table_bytes >= FROM_BYTES and since < PATIENCE and clock() < end:
        block = list(take(BLOCK))
        middle = median(block)
        since += 1
        if middle < before * (1 - FALL):
            before, since = middle, 0
        taken += block
    return taken
