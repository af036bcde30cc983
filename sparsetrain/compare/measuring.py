# SPDX-License-Identifier: Apache-2.0
"""Measurement of one arm on one case, with one table in memory.

Each step draws new ids, and warm-up steps, which compile, are not counted. Cheap steps are repeated
for `SECONDS`, expensive steps `LEAST_STEPS` times, and steps that take seconds fewer times.
"""

from __future__ import annotations

import gc
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from itertools import islice
from math import nan
from typing import NamedTuple

import numpy as np
import tvm

from sparsetrain.compare.arms import ARMS, Arm, Step
from sparsetrain.compare.case import Case
from sparsetrain.system.memory import free_memory

LEAST_STEPS = 10
MOST_STEPS = 400
WARM = 3
SECONDS = 0.4
_MOST_SECONDS = 5.0  # limit for the warm-up, and for measuring slow steps
_SPARE_BYTES = 2**28  # memory left free for batches, code and the system
_MOST_IDS = 2**22  # most ids in all steps of a case together
_LARGE_BYTES = 2**25  # smaller tables stay in the caches
# In a virtual machine, the first thousands of random reads of a new table wait for the host and
# take up to ten times as long; in training, this phase ends within a second.
_LARGE_WARM_SECONDS = 1.0

Ids = Sequence[np.ndarray]


class Measurement(NamedTuple):
    """Time and memory of one arm on one case, or the reason why they were not measured."""

    arm: str
    case: Case
    left_out: str | None = None
    unique: float = nan  # mean number of distinct rows in a step
    steps: int = 0  # steps without warm-up
    median_us: float = nan
    p10_us: float = nan
    p90_us: float = nan
    memory_bytes: int = 0  # memory of a step on top of table and slots, by formula


def measure(arm: str, case: Case, ids: Ids | None = None) -> Measurement:
    """Measure an arm on a case, or return the reason why it cannot be measured.

    Parameters
    ----------
    arm : str
        A name in `ARMS`.
    case : Case
    ids : sequence of (N,) int32, optional
        Ids of at least ``WARM + LEAST_STEPS`` steps; by default they are drawn.

    Raises
    ------
    DataError
        If `ids` do not fit the case.
    ResourceError
        If there is not enough memory for the table, its slots or a buffer.
    """
    needed, free = ARMS[arm].peak_bytes(case), free_memory()
    reason = ARMS[arm].unsupported(case)
    if reason is None and free is not None and needed + _SPARE_BYTES > free:
        reason = f"needs {needed / 1e9:.1f} GB of memory, but {free / 1e9:.1f} GB are free"
    if reason is not None:
        return Measurement(arm, case, reason)
    most = max(LEAST_STEPS, min(MOST_STEPS, _MOST_IDS // case.lookups))
    ids = ids or list(case.draw_ids(WARM + most))
    seconds = _take_steps(ARMS[arm], case, ids)
    gc.collect()  # free memory for the next table
    tvm.get_global_func("vm.builtin.memory_manager.clear")()
    low, median, high = (1e6 * np.percentile(seconds, [10, 50, 90])).tolist()
    unique = float(np.mean([len(np.unique(step)) for step in ids[:LEAST_STEPS]]))
    times = len(seconds), median, low, high
    return Measurement(arm, case, None, unique, *times, ARMS[arm].memory(case))


def _take_steps(arm: Arm, case: Case, ids: Ids) -> list[float]:
    """Warm up, take steps, and return the seconds of each step."""
    step, gradients = arm.prepare(case), case.gradients(ids)
    begin = time.perf_counter()
    for gradient in islice(gradients, WARM):
        step(gradient)
        if time.perf_counter() - begin > _MOST_SECONDS:
            break
    if not arm.dense and case.table_bytes >= _LARGE_BYTES:
        _warm_up(step, replace(case, skew="uniform"))
    seconds: list[float] = []
    for gradient in gradients:
        begin = time.perf_counter()
        step(gradient)
        seconds.append(time.perf_counter() - begin)
        if sum(seconds) > (SECONDS if len(seconds) >= LEAST_STEPS else _MOST_SECONDS):
            break
    return seconds


def _warm_up(step: Step, case: Case) -> None:
    """Take steps with ids drawn from the whole of a large table, for a fixed time."""
    end = time.perf_counter() + _LARGE_WARM_SECONDS
    for gradient in case.gradients(case.draw_ids(sys.maxsize, seed=2)):
        step(gradient)
        if time.perf_counter() > end:
            return
