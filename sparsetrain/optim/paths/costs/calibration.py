# SPDX-License-Identifier: Apache-2.0
"""Straight lines through the times of both paths, on tables small enough for a choice to matter.

All points are measured in turn, round after round, until none becomes shorter: what else runs only
adds. Takes 0.1 to 0.4 s besides compiling.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial
from types import SimpleNamespace

import numpy as np

from sparsetrain.optim.paths.costs.lines import Costs, distinct_rows
from sparsetrain.optim.paths.costs.trial import Clock, Kind, Trial, Work, kernels_of
from sparsetrain.optim.paths.costs.waiting import share_waited
from sparsetrain.runtime.together import together

MANY = 8192  # ids of a step; from there all threads may sort them
IDS = {False: (64, 6144), True: (MANY, 32_768)}  # of two steps; whether they are many
# Of tables: below where both paths cost the same, above it, and beyond the near caches.
LOW_BYTES, HIGH_BYTES, FAR_BYTES = 2**18, 2**21, 2**24
HOT = 64  # distinct rows, where they are few
BATCHES = 4
SETTLED = 10  # rounds in which no time fell by more than `FALL`
FALL = 0.02
MOST_ROUNDS = 400
SECONDS = 0.5


def measure(kind: Kind, *, many: bool) -> Costs:
    """Time both paths; see the module."""
    fewer, more = IDS[many]
    together(kernels_of(kind, IDS[many]))
    row_bytes = kind.width * np.dtype(kind.dtype).itemsize
    low = min(max(LOW_BYTES // row_bytes, 1), kind.storage)
    some = min(HOT, low)
    high = max(HIGH_BYTES // row_bytes, 2 * low)
    far = max(FAR_BYTES // row_bytes, 2 * high)
    most = min(far, kind.storage)
    less, full = (_trial(kind, low, ids, low) for ids in (fewer, more))
    hot, wide = _trial(kind, low, more, some), _trial(kind, most, more, most)
    above, beyond = (_trial(kind, rows, fewer, rows) for rows in (high, far))
    works: dict[str, Callable[[], object]] = {
        "sparse_fewer": less.sparse_,
        "sparse_hot": hot.sparse_,
        "sparse_wide": wide.sparse_,
        "dense_fewer": less.dense_,
        "dense_more": full.dense_,
        "dense_high": above.dense_,
        "dense_far": beyond.dense_,
        "split_fewer": less.split,
        "split_more": full.split,
    }
    for work in works.values():
        work()  # what is used for the first time
    times, waited = share_waited(partial(shortest, list(works.values())))
    at = SimpleNamespace(**dict(zip(works, times, strict=True)))
    return _fit(at, (fewer, more), (some, low, most), (high, far))._replace(waited=waited)


def _trial(kind: Kind, rows: int, ids: int, distinct: int) -> Trial:
    rng = np.random.default_rng(0)
    drawn = rng.integers(0, distinct, (BATCHES, ids), dtype=np.int32)
    return Trial(kind, rows, 0, list(drawn * (rows // distinct)))


def _fit(
    at: SimpleNamespace, ids: tuple[int, int], spread: tuple[int, int, int], large: tuple[int, int]
) -> Costs:
    """The lines through the measured points; noise makes no cost negative, and none many times."""
    (fewer, more), (some, low, most), (high, far) = ids, spread, large
    between = more - fewer
    few_rows, hot_rows, wide_rows = (
        distinct_rows(rows, count) for rows, count in ((low, fewer), (some, more), (most, more))
    )
    # A storage of few rows has both points at about the same rows: their difference is noise.
    touched = max(at.sparse_wide - at.sparse_hot, 0.0) / max(wide_rows - hot_rows, HOT)
    entries = at.sparse_hot - at.sparse_fewer + touched * (few_rows - hot_rows)
    entry = max(entries, 0.0) / between
    both = max(at.dense_more - at.dense_fewer, 0.0) / between
    part = max(at.split_more - at.split_fewer, 0.0) / between
    row = max(at.dense_high - at.dense_fewer, 0.0) / (high - low)
    return Costs(
        sparse=max(at.sparse_fewer - entry * fewer - touched * few_rows, 0.0),
        dense=max(at.dense_fewer - both * fewer - row * low, 0.0),
        entry=entry,
        touched=touched,
        part=part,
        add=max(both - part, 0.0),
        row=row,
        far_row=max(at.dense_far - at.dense_high, 0.0) / (far - high),
        high=high,
    )


def shortest(works: Sequence[Work], clock: Clock = time.perf_counter) -> list[float]:
    """Microseconds of each at its shortest, measured in rounds until nothing becomes shorter.

    Each is called a second time, after one that warms the caches.
    """
    best, quiet, end = np.full(len(works), np.inf), 0, clock() + SECONDS
    for _ in range(MOST_ROUNDS):
        times = []
        for work in works:
            work()
            begin = clock()
            work()
            times.append(1e6 * (clock() - begin))
        quiet = 0 if (times < best * (1 - FALL)).any() else quiet + 1
        best = np.minimum(best, times)
        if quiet == SETTLED or clock() > end:
            break
    found: list[float] = best.tolist()
    return found
