# SPDX-License-Identifier: Apache-2.0
"""Measure a plan: case after case, arm after arm, one table in memory at a time."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from itertools import groupby

from sparsetrain import runtime
from sparsetrain.compare.arms import ARMS, Arm
from sparsetrain.compare.case import Case
from sparsetrain.compare.ids import check_skew
from sparsetrain.compare.machine import machine
from sparsetrain.compare.measure import Ids, ids_of, measure, roof_seconds
from sparsetrain.compare.memory import available_bytes
from sparsetrain.compare.others import Others
from sparsetrain.compare.report import LeftOut, Report
from sparsetrain.compare.roofs import stream_bandwidth
from sparsetrain.compare.sweeps import Item
from sparsetrain.errors import ConfigError, DataError
from sparsetrain.optim import OPTIMIZERS

_PATIENCE = 1.0  # seconds of a step; larger tables are left out after it
_SPARE = 2**28  # bytes for batches, code and the system

Say = Callable[[str], None]


def run(
    items: Sequence[Item],
    *,
    ids: Mapping[str, Ids] | None = None,
    arms: Mapping[str, Arm] = ARMS,
    say: Say = lambda text: None,
    keep: Callable[[Report], object] = lambda report: None,
) -> Report:
    """Measure every item on each of its arms.

    Parameters
    ----------
    items : sequence of Item
        From `plan`, or made by hand.
    ids : mapping of str to sequence of (N,) int32, optional
        Given ids of a case, by its label; all other ids are drawn.
    arms : mapping of str to Arm
        The ways to update.
    say : callable
        Told of each case before it is measured.
    keep : callable
        Gets the report after each case, so that a long run can save what it has.

    Returns
    -------
    Report
        Figures, and what was left out because there is no memory or nothing to measure.

    Raises
    ------
    ConfigError
        If an arm, a formula or a law of ids is unknown; before anything is measured.
    DataError
        If given ids are not as many as the case looks up, or rows that it has not; likewise.
    """
    given = ids or {}
    for item in items:
        _check(item, arms, given)
    report = Report(machine(), stream_bandwidth())
    others = Others()
    for case, group in groupby(items, key=lambda item: item.case):
        say(str(case))
        with _threads(case.threads):
            _measure_case(report, list(group), given.get(case.label), arms, others)
        report.machine["others_cores"] = others.cores
        keep(report)
    return report


def _check(item: Item, arms: Mapping[str, Arm], given: Mapping[str, Ids]) -> None:
    for name in item.arms:
        if name not in arms:
            raise ConfigError(f"compare: arm is one of {', '.join(arms)}, not {name!r}")
    if item.case.formula not in OPTIMIZERS:
        raise ConfigError(
            f"compare: formula is one of {', '.join(OPTIMIZERS)}, not {item.case.formula!r}"
        )
    if item.case.label in given:
        _check_ids(item.case, given[item.case.label])
    else:
        check_skew(item.case.skew)


def _check_ids(case: Case, ids: Ids) -> None:
    """Kernels trust them: a row that is not there would be written all the same."""
    for number, step in enumerate(ids):
        if step.shape != (case.lookups,) or step.dtype.kind not in "iu":
            raise DataError(
                f"compare: ids of {case.label!r}, step {number}: {step.dtype} {step.shape}; give "
                f"({case.lookups},) whole numbers, as the case has lookups"
            )
        if step.min() < 0 or step.max() >= case.rows:
            raise DataError(
                f"compare: ids of {case.label!r}, step {number}: they go from {step.min()} to "
                f"{step.max()}; its rows are 0 to {case.rows - 1}"
            )


def _measure_case(
    report: Report,
    items: Sequence[Item],
    given: Ids | None,
    arms: Mapping[str, Arm],
    others: Others,
) -> None:
    """All arms of one case; they share ids and the roof."""
    case, roof = items[0].case, None
    for sweep, name in dict.fromkeys((item.sweep, name) for item in items for name in item.arms):
        arm = arms[name]
        slow = _too_slow(report, sweep, arm, case)
        why = arm.why_not(case) or _no_memory(arm.needs(case)) or slow
        if why is not None:
            report.left_out.append(LeftOut(sweep, name, case, why))
            continue
        if roof is None:
            roof = roof_seconds(case, given or ids_of(case, dear=False, seed=1))
        ids = given or ids_of(case, dear=name == "stock")
        with others.watched() if arm.elsewhere is None else nullcontext():
            report.measurements.append(measure(sweep, arm, case, ids, roof))


def _too_slow(report: Report, sweep: str, arm: Arm, case: Case) -> str | None:
    """Whether a smaller table took so long that a dozen steps on this one are not worth it."""
    for m in report.measurements:
        alike = (m.sweep, m.arm) == (sweep, arm.name) and _like(m.case, case)
        if alike and arm.dense and m.case.rows < case.rows and m.median_us > 1e6 * _PATIENCE:
            return f"a step on {m.case.rows:,} rows took {m.median_us / 1e6:.1f} s"
    return None


def _like(measured: Case, case: Case) -> bool:
    """Whether two cases differ in rows at most; a measured one knows its threads."""
    return replace(measured, rows=case.rows, threads=case.threads) == case


def _no_memory(needed: int) -> str | None:
    free = available_bytes()
    if free is None or needed + _SPARE <= free:
        return None
    return f"needs {needed / 1e9:.1f} GB of memory, {free / 1e9:.1f} GB are free"


@contextmanager
def _threads(count: int) -> Iterator[None]:
    """Run kernels on so many threads for a while; 0 changes nothing."""
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
