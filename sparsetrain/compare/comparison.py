# SPDX-License-Identifier: Apache-2.0
"""The measurement of a plan: case after case, arm after arm, one table in memory at a time."""

from __future__ import annotations

import os
import platform
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from importlib import metadata
from itertools import groupby
from pathlib import Path
from typing import Any

from sparsetrain import runtime
from sparsetrain.compare.arms import ARMS, Arm
from sparsetrain.compare.batches import check_skew
from sparsetrain.compare.case import Case
from sparsetrain.compare.measure import Ids, draw_case_ids, measure
from sparsetrain.compare.report import LeftOut, Report
from sparsetrain.compare.sweeps import Item
from sparsetrain.errors import ConfigError, DataError
from sparsetrain.optim import OPTIMIZERS
from sparsetrain.system.cores import available_cores
from sparsetrain.system.memory import meminfo

_MOST_SECONDS = 1.0  # of a dense step; larger tables are left out after it
_SPARE_BYTES = 2**28  # for batches, code and the system
_CGROUP = Path("/sys/fs/cgroup")


def run(
    items: Sequence[Item],
    *,
    ids: Mapping[str, Ids] | None = None,
    progress: Callable[[str], object] = lambda text: None,
    on_case: Callable[[Report], object] = lambda report: None,
) -> Report:
    """Measure every item on each of its arms.

    Parameters
    ----------
    items : sequence of Item
        From `plan`, or made by hand.
    ids : mapping of str to sequence of (N,) int32, optional
        Ids of a case, by its label; without them they are drawn.
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
    ConfigError
        If an arm, a formula or a distribution is unknown; raised before anything is measured.
    DataError
        If `ids` do not fit the case; raised before anything is measured.
    """
    ids = ids or {}
    for item in items:
        _check(item, ids)
    report = Report(describe_machine())
    for case, group in groupby(items, key=lambda item: item.case):
        progress(str(case))
        with _kernel_threads(case.threads):
            _measure_case(report, list(group), ids.get(case.label))
        on_case(report)
    return report


def _check(item: Item, ids: Mapping[str, Ids]) -> None:
    case = item.case
    for name in item.arms:
        if name not in ARMS:
            raise ConfigError(f"compare: arm is one of {', '.join(ARMS)}, not {name!r}")
    if case.formula not in OPTIMIZERS:
        raise ConfigError(
            f"compare: formula is one of {', '.join(OPTIMIZERS)}, not {case.formula!r}"
        )
    if case.label in ids:
        _check_ids(case, ids[case.label])
    else:
        check_skew(case.skew)


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


def _measure_case(report: Report, items: Sequence[Item], ids: Ids | None) -> None:
    """Measure all arms of one case, on the same ids."""
    case = items[0].case
    for sweep, name in dict.fromkeys((item.sweep, name) for item in items for name in item.arms):
        arm = ARMS[name]
        reason = (
            arm.unsupported(case)
            or _too_large(arm.peak_bytes(case))
            or _too_slow(report, sweep, arm, case)
        )
        if reason is not None:
            report.left_out.append(LeftOut(sweep, name, case, reason))
            continue
        steps = ids or draw_case_ids(case, expensive=name == "stock")
        report.measurements.append(measure(sweep, arm, case, steps))


def _too_slow(report: Report, sweep: str, arm: Arm, case: Case) -> str | None:
    """Say if a smaller table took too long already."""
    for m in report.measurements:
        same_arm = arm.dense and (m.sweep, m.arm) == (sweep, arm.name)
        # A measured case has the number of threads where the planned one may have 0.
        smaller = replace(m.case, rows=case.rows, threads=case.threads) == case
        if same_arm and smaller and m.case.rows < case.rows and m.median_us > 1e6 * _MOST_SECONDS:
            return f"a step on {m.case.rows:,} rows took {m.median_us / 1e6:.1f} s"
    return None


def _too_large(needed: int) -> str | None:
    free = available_bytes()
    if free is None or needed + _SPARE_BYTES <= free:
        return None
    return f"needs {needed / 1e9:.1f} GB of memory, {free / 1e9:.1f} GB are free"


@contextmanager
def _kernel_threads(count: int) -> Iterator[None]:
    """Run kernels on `count` threads inside the block; 0 changes nothing."""
    before, setting = runtime.num_threads(), os.environ.get("TVM_NUM_THREADS")
    if count:
        runtime.set_num_threads(count)
    try:
        yield
    finally:
        if count:
            runtime.set_num_threads(before)
            if setting is not None:
                os.environ["TVM_NUM_THREADS"] = setting


def describe_machine() -> dict[str, Any]:
    """Return processor, threads, memory and versions, as a report keeps them."""
    return {
        "processor": _processor(),
        "cores": available_cores(),
        "threads": runtime.num_threads(),
        "memory_bytes": available_bytes(),
        "python": platform.python_version(),
        "system": platform.platform(),
        **{name: metadata.version(name) for name in ("apache-tvm", "numpy")},
    }


def _processor() -> str:
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def available_bytes() -> int | None:
    """Return the memory that this process could get, or None where the system does not say."""
    with suppress(OSError, KeyError, ValueError):
        return min([meminfo("MemAvailable"), *_cgroup_limit()])
    return None


def _cgroup_limit() -> list[int]:
    with suppress(OSError, ValueError):
        limit = int((_CGROUP / "memory.max").read_text())
        return [max(limit - int((_CGROUP / "memory.current").read_text()), 0)]
    return []
