# SPDX-License-Identifier: Apache-2.0
"""Time and memory of one arm's steps on one case.

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
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import tvm

from sparsetrain import runtime
from sparsetrain.compare.arms import Arm, Step
from sparsetrain.compare.batches import Batch, draw_ids, make_batches
from sparsetrain.compare.case import Case

LEAST_STEPS = 10
MOST_STEPS = 400
WARM = 3
SECONDS = 0.4
_MOST_IDS = 2**22  # of all steps of a case together
_SMALL = 64  # rows of the table on which kernels are compiled
_LARGE_BYTES = 2**25  # smaller tables stay in the caches
# In a virtual machine the first thousands of random reads of a new table wait for the host, which
# makes them up to ten times as long; a training run is past that within a second.
_LARGE_WARM_SECONDS = 1.0

Ids = Sequence[np.ndarray]


@dataclass(frozen=True)
class Measurement:
    """Time and memory of one arm on one case.

    Parameters
    ----------
    sweep : str
        The sweep it belongs to.
    arm : str
        A name in `ARMS`.
    case : Case
        The table and the step.
    unique : float
        Distinct rows of a step, on average.
    steps : int
        Steps that count.
    median_us, p10_us, p90_us : float
        Microseconds of a step.
    memory_bytes : int or None
        Measured memory of a step on top of table and slots, where the system reports it.
    formula_memory_bytes : int
        The same by formula.
    """

    sweep: str
    arm: str
    case: Case
    unique: float
    steps: int
    median_us: float
    p10_us: float
    p90_us: float
    memory_bytes: int | None
    formula_memory_bytes: int

    def to_dict(self) -> dict[str, Any]:
        """Return one flat row of a table, the case's fields among the results."""
        flat = asdict(self)
        return {"sweep": flat.pop("sweep"), "arm": flat.pop("arm"), **flat.pop("case"), **flat}


def draw_case_ids(case: Case, *, expensive: bool) -> Ids:
    """Draw ids for as many steps as are measured; few if they are expensive."""
    most = 0 if expensive else min(MOST_STEPS, _MOST_IDS // case.lookups)
    return list(draw_ids(case, WARM + max(LEAST_STEPS, most)))


def measure(sweep: str, arm: Arm, case: Case, ids: Ids) -> Measurement:
    """Take the steps of one arm.

    Parameters
    ----------
    sweep : str
        A name for the result.
    arm : Arm
        The way to update.
    case : Case
        The table and the step.
    ids : sequence of (N,) int32
        Ids of each step: at least ``WARM + LEAST_STEPS``.

    Raises
    ------
    ResourceError
        If memory does not suffice for table, slots or a buffer.
    """
    memory, seconds = _take_steps(arm, case, ids)
    release_memory()
    microseconds = 1e6 * np.array(seconds)
    low, median, high = np.percentile(microseconds, [10, 50, 90]).tolist()
    return Measurement(
        sweep,
        arm.name,
        replace(case, threads=runtime.num_threads()),
        unique=float(np.mean([_count_distinct(step_ids) for step_ids in ids[:LEAST_STEPS]])),
        steps=len(microseconds),
        median_us=median,
        p10_us=low,
        p90_us=high,
        memory_bytes=memory,
        formula_memory_bytes=arm.memory(case),
    )


def _take_steps(arm: Arm, case: Case, ids: Ids) -> tuple[int | None, list[float]]:
    """Return the memory of the first steps, and the seconds of those that count."""
    _compile(arm, case)
    step, batches = arm.prepare(case), make_batches(case, ids)
    memory = measure_peak(lambda: [step(batch) for batch in islice(batches, WARM)])
    if not arm.dense and case.table_bytes >= _LARGE_BYTES:
        _warm_up(step, case)
    return memory, _time_steps(step, batches)


def _compile(arm: Arm, case: Case) -> None:
    """Take a step on a tiny table: most kernels do not depend on the rows, and are cached."""
    small = replace(case, rows=min(case.rows, _SMALL))
    step = arm.prepare(small)
    for batch in make_batches(small, [np.zeros(case.lookups, np.int32)]):
        step(batch)


def _warm_up(step: Step, case: Case) -> None:
    """Take steps that touch all of a large table, for a fixed time."""
    ids = draw_ids(replace(case, skew="uniform"), sys.maxsize, seed=2)
    end = time.perf_counter() + _LARGE_WARM_SECONDS
    for batch in make_batches(case, ids):
        step(batch)
        if time.perf_counter() > end:
            return


def _time_steps(step: Step, batches: Iterator[Batch]) -> list[float]:
    """Return the seconds of each step."""
    seconds: list[float] = []
    for batch in batches:
        begin = time.perf_counter()
        step(batch)
        seconds.append(time.perf_counter() - begin)
        if len(seconds) >= LEAST_STEPS and sum(seconds) > SECONDS:
            break
    return seconds


def _count_distinct(ids: np.ndarray) -> int:
    """Count distinct ids by sorting, which is far quicker here than `numpy.unique`'s hashing."""
    return 1 + int(np.count_nonzero(np.diff(np.sort(ids))))


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
