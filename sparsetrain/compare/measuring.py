# SPDX-License-Identifier: Apache-2.0
"""Time and memory of every arm on every case, one table in memory at a time.

Kernels are compiled first, no two steps share ids, and warm-up steps do not count. Cheap steps are
repeated until they fill `SECONDS`, expensive ones at least `LEAST_STEPS` times. Memory is that of
the warm-up, on top of table and slots: the peak, which Linux alone reports, in pages and lazily, so
that differences below 1 MB mean nothing.
"""

from __future__ import annotations

import ctypes
import gc
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import islice
from pathlib import Path

import numpy as np
import tvm

from sparsetrain.compare.arms import ARMS, Arm, Step
from sparsetrain.compare.case import Case
from sparsetrain.compare.machine import available_bytes, describe_machine
from sparsetrain.compare.report import LeftOut, Measurement, Report
from sparsetrain.errors import DataError
from sparsetrain.sparse_tensor import RowSparse

LEAST_STEPS = 10
MOST_STEPS = 400
WARM = 3
SECONDS = 0.4
_MOST_SECONDS = 1.0  # of a dense step; larger tables are left out after it
_SPARE_BYTES = 2**28  # for batches, code and the system
_MOST_IDS = 2**22  # of all steps of a case together
_SMALL = 64  # rows of the table on which kernels are compiled
_LARGE_BYTES = 2**25  # smaller tables stay in the caches
# In a virtual machine the first thousands of random reads of a new table wait for the host, which
# makes them up to ten times as long; a training run is past that within a second.
_LARGE_WARM_SECONDS = 1.0

Ids = Sequence[np.ndarray]


def run(
    cases: Sequence[Case],
    *,
    arms: Sequence[str] = tuple(ARMS),
    ids: Mapping[str, Ids] | None = None,
    progress: Callable[[str], object] = lambda text: None,
    on_case: Callable[[Report], object] = lambda report: None,
) -> Report:
    """Measure every case on each of the arms.

    Parameters
    ----------
    cases : sequence of Case
        From `sweep` or `tables_of_data`, or made by hand.
    arms : sequence of str
        Names in `ARMS`.
    ids : mapping of str to sequence of (N,) int32, optional
        Ids of a case, by its label: of ``WARM + LEAST_STEPS`` steps at least. Without them they are
        drawn.
    progress : callable
        Called with the description of each case before it is measured.
    on_case : callable
        Called with the report after each case, so that a long run can save its results.

    Returns
    -------
    Report
        Measurements, and the cases that were left out, each with the reason.

    Raises
    ------
    DataError
        If `ids` do not fit the case; raised before anything is measured.
    ResourceError
        If memory does not suffice for table, slots or a buffer.
    """
    ids = ids or {}
    for case in cases:
        _check_ids(case, ids.get(case.label, ()))
    report = Report(describe_machine())
    for case in cases:
        progress(str(case))
        for name in arms:
            _measure_arm(report, ARMS[name], case, ids.get(case.label))
        on_case(report)
    return report


def _check_ids(case: Case, ids: Ids) -> None:
    """Kernels do not check ids: one out of range would write outside the table."""
    for number, step in enumerate(ids):
        place = f"compare: ids of {case.label!r}, step {number}"
        if step.shape != (case.lookups,) or step.dtype.kind not in "iu":
            raise DataError(
                f"{place}: {step.dtype} {step.shape}; expected ({case.lookups},) integers, "
                "one for each lookup"
            )
        if step.min() < 0 or step.max() >= case.rows:
            raise DataError(
                f"{place}: they range from {step.min()} to {step.max()}, but the table's rows "
                f"are 0 to {case.rows - 1}"
            )


def _measure_arm(report: Report, arm: Arm, case: Case, ids: Ids | None) -> None:
    reason = (
        arm.unsupported(case)
        or _too_large(arm.peak_bytes(case))
        or _too_slow(report.measurements, arm, case)
    )
    if reason is not None:
        report.left_out.append(LeftOut(arm.name, case, reason))
        return
    most = 0 if arm.name == "stock" else min(MOST_STEPS, _MOST_IDS // case.lookups)
    ids = ids or list(case.draw_ids(WARM + max(LEAST_STEPS, most)))
    memory, seconds = _take_steps(arm, case, ids)
    release_memory()
    low, median, high = (1e6 * np.percentile(seconds, [10, 50, 90])).tolist()
    measured = Measurement(
        arm.name,
        case,
        unique=float(np.mean([len(np.unique(step)) for step in ids[:LEAST_STEPS]])),
        steps=len(seconds),
        median_us=median,
        p10_us=low,
        p90_us=high,
        memory_bytes=memory,
        formula_memory_bytes=arm.memory(case),
    )
    report.measurements.append(measured)


def _too_slow(measured: Sequence[Measurement], arm: Arm, case: Case) -> str | None:
    """Say if a smaller table took too long already."""
    for m in measured if arm.dense else ():
        smaller = replace(m.case, rows=case.rows) == case and m.case.rows < case.rows
        if m.arm == arm.name and smaller and m.median_us > 1e6 * _MOST_SECONDS:
            return f"a step on {m.case.rows:,} rows took {m.median_us / 1e6:.1f} s"
    return None


def _too_large(needed: int) -> str | None:
    free = available_bytes()
    if free is None or needed + _SPARE_BYTES <= free:
        return None
    return f"needs {needed / 1e9:.1f} GB of memory, {free / 1e9:.1f} GB are free"


def _take_steps(arm: Arm, case: Case, ids: Ids) -> tuple[int | None, list[float]]:
    """Return the memory of the first steps, and the seconds of those that count."""
    # Most kernels do not depend on the rows, and are cached.
    small = replace(case, rows=min(case.rows, _SMALL))
    step = arm.prepare(small)
    for gradient in small.gradients([np.zeros(case.lookups, np.int32)]):
        step(gradient)
    step, gradients = arm.prepare(case), case.gradients(ids)
    memory = measure_peak(lambda: [step(gradient) for gradient in islice(gradients, WARM)])
    if not arm.dense and case.table_bytes >= _LARGE_BYTES:
        _warm_up(step, replace(case, skew="uniform"))
    return memory, _time_steps(step, gradients)


def _warm_up(step: Step, case: Case) -> None:
    """Take steps that touch all of a large table, for a fixed time."""
    end = time.perf_counter() + _LARGE_WARM_SECONDS
    for gradient in case.gradients(case.draw_ids(sys.maxsize, seed=2)):
        step(gradient)
        if time.perf_counter() > end:
            return


def _time_steps(step: Step, gradients: Iterator[RowSparse]) -> list[float]:
    """Return the seconds of each step."""
    seconds: list[float] = []
    for gradient in gradients:
        begin = time.perf_counter()
        step(gradient)
        seconds.append(time.perf_counter() - begin)
        if len(seconds) >= LEAST_STEPS and sum(seconds) > SECONDS:
            break
    return seconds


def measure_peak(work: Callable[[], object]) -> int | None:
    """Run `work`; return by how many bytes memory in use rose, or None if the system is silent."""
    release_memory()
    try:
        Path("/proc/self/clear_refs").write_text("5")  # resets the peak
        before = _status("VmRSS")
        work()
        return max(_status("VmHWM") - before, 0)
    except (OSError, KeyError):
        work()
        return None


def release_memory() -> None:
    """Return freed memory to the system: Python's, TVM's pools, the C library's."""
    gc.collect()
    tvm.get_global_func("vm.builtin.memory_manager.clear")()
    with suppress(OSError, AttributeError):  # only the GNU C library has malloc_trim
        ctypes.CDLL(None).malloc_trim(0)


def _status(name: str) -> int:
    fields = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return 1024 * int(fields[name].split()[0])
