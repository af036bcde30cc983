# SPDX-License-Identifier: Apache-2.0
"""The kernel that updates rows, and the roof called in its place, by turns.

Called after itself a kernel finds other caches than after a sort and Python, and a machine that
others use is another one a second later. So the two take turns in the same steps: in one the kernel
is timed, in the next the roof, on that step's rows, before the kernel does its work untimed.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from itertools import cycle
from typing import Any, NamedTuple

import numpy as np

from sparsetrain import runtime
from sparsetrain.compare.arms import Step
from sparsetrain.compare.batch import Batch
from sparsetrain.compare.ids import distinct
from sparsetrain.compare.roofs import random_row_kernels
from sparsetrain.optim.range_update import ROW_UPDATE, ROW_UPDATE_WEIGHT
from sparsetrain.runtime.compiling import intercept_kernels


class InPlace(NamedTuple):
    """Median seconds of the kernel, and of the fastest of the roof's kernels."""

    kernel: float
    roof: float


def kernel_and_roof(step: Step, batches: Iterable[Batch], width: int, warm: int) -> InPlace | None:
    """Take steps of their own, because watching takes time.

    Parameters
    ----------
    step : callable
        Takes a step on a table of float32.
    batches : iterable of Batch
        What the steps take; the first `warm` do not count.
    width : int
        D, of the table.

    Returns
    -------
    InPlace or None
        None if steps call no such kernel, or are too few for both.
    """
    roofs = random_row_kernels(width)
    kernel_seconds: list[float] = []
    roof_seconds: list[list[float]] = [[] for _ in roofs]
    turns = cycle(each for number in range(len(roofs)) for each in (None, number))
    for number, batch in enumerate(batches):
        turn = None if number < warm else next(turns)
        seconds = kernel_seconds if turn is None else roof_seconds[turn]
        rows = runtime.as_tensor(distinct(runtime.as_numpy(batch.ids)), "int32")
        roof = None if turn is None else roofs[turn]
        with intercept_kernels(_watch(seconds, roof, rows)):
            step(batch)
    measured = [float(np.median(seconds)) for seconds in roof_seconds if seconds]
    counted = kernel_seconds[warm:]
    return InPlace(float(np.median(counted)), min(measured)) if counted and measured else None


def _watch(
    seconds: list[float], roof: Callable[[Any, Any], object] | None, rows: runtime.NDArray
) -> Callable[..., Any]:
    """Note the time of the kernel, or of the roof before it."""

    def watch(name: str, kernel: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
        if name != ROW_UPDATE:
            return kernel(*arguments)
        begin = time.perf_counter()
        if roof is None:
            result = kernel(*arguments)
            seconds.append(time.perf_counter() - begin)
            return result
        roof(arguments[ROW_UPDATE_WEIGHT], rows)
        seconds.append(time.perf_counter() - begin)
        return kernel(*arguments)

    return watch
