# SPDX-License-Identifier: Apache-2.0
"""How long an arm's steps take, and what memory they need.

No step sees the ids of another one, the first few do not count, and kernels are compiled before.
Cheap steps are repeated until they fill a time, dear ones at least ten times. Large tables settle
first, see `settle`.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import islice
from typing import NamedTuple

import numpy as np

from sparsetrain import runtime
from sparsetrain.compare import counters
from sparsetrain.compare.after_lookup import AfterLookup, after_lookup
from sparsetrain.compare.arms import Arm, Halves, Step, Taken, new_table
from sparsetrain.compare.batch import Batch, make_batches
from sparsetrain.compare.case import Case
from sparsetrain.compare.ids import distinct, draw_ids
from sparsetrain.compare.in_place import InPlace, kernel_and_roof
from sparsetrain.compare.measurement import Measurement
from sparsetrain.compare.memory import give_back, peak_of
from sparsetrain.compare.roofs import random_row_seconds
from sparsetrain.compare.settle import settle

LEAST_STEPS = 10
MOST_STEPS = 400
_MOST_IDS = 2**22  # of all steps of a case together
WARM = 3
_LEAST_WATCHED, _MOST_WATCHED = WARM + LEAST_STEPS, WARM + 96  # steps of either kind
SECONDS = 0.4  # after which an arm that has its ten steps has had enough
_SMALL = 64  # rows of the table on which kernels are compiled

Ids = Sequence[np.ndarray]


def steps_of(case: Case, *, dear: bool) -> int:
    """How many steps a case is measured for, warm ones included; dear steps are few."""
    if dear:
        return WARM + LEAST_STEPS
    affordable = _MOST_IDS // case.lookups
    return WARM + max(LEAST_STEPS, min(MOST_STEPS, affordable)) + 2 * _watched(case)


def _watched(case: Case) -> int:
    """How many of these steps, in the end, time the kernel, and as many follow a lookup."""
    return max(_LEAST_WATCHED, min(_MOST_WATCHED, _MOST_IDS // case.lookups))


def ids_of(case: Case, *, dear: bool, seed: int = 0) -> Ids:
    """Ids of as many steps as will be taken."""
    return list(draw_ids(case, steps_of(case, dear=dear), seed))


def roof_seconds(case: Case, ids: Ids) -> float:
    """Median seconds to read and write a step's distinct rows on a table of this size."""
    table, drawn = new_table(case), _anywhere(case)
    settle(
        lambda count: random_row_seconds(table, map(distinct, islice(drawn, count))).tolist(),
        case.table_bytes,
    )
    times = random_row_seconds(table, map(distinct, ids))
    return float(np.median(times[min(WARM, len(times) // 2) :]))


def measure(sweep: str, arm: Arm, case: Case, ids: Ids, roof: float | None) -> Measurement:
    """Take the steps of one arm.

    Parameters
    ----------
    sweep : str
        A name for the result.
    arm : Arm
        How to update.
    case : Case
        What to update.
    ids : sequence of (N,) int32
        Of each step; at least `LEAST_STEPS`, and three more that do not count.
    roof : float or None
        Seconds of the case's roof.

    Raises
    ------
    ResourceError
        If there is no memory for table, slots or a buffer.
    """
    found = _take(arm, case, ids)
    give_back()
    taken, in_place, looked_up = found.steps, found.in_place, found.after_lookup
    whole = 1e6 * np.array([t.whole for t in taken])
    writes = [1e6 * t.writes for t in taken if t.writes is not None]
    low, middle, high = np.percentile(whole, [10, 50, 90])
    unique = float(np.mean([len(distinct(rows)) for rows in ids[:LEAST_STEPS]]))
    return Measurement(
        sweep,
        arm.name,
        replace(case, threads=runtime.num_threads()),
        unique=unique,
        steps=len(taken),
        median_us=float(middle),
        p10_us=float(low),
        p90_us=float(high),
        first_us=None if found.first is None else 1e6 * found.first,
        writes_us=float(np.median(writes)) if writes else None,
        kernel_us=None if in_place is None else 1e6 * in_place.kernel,
        kernel_roof_us=None if in_place is None else 1e6 * in_place.roof,
        lookup_us=None if looked_up is None else 1e6 * looked_up.lookup,
        after_lookup_us=None if looked_up is None else 1e6 * looked_up.update,
        traffic_bytes=arm.traffic(case, unique),
        counted_bytes=found.counted,
        memory_bytes=found.memory,
        formula_memory_bytes=arm.memory(case),
        roof_us=None if roof is None else 1e6 * roof,
    )


def _compile(arm: Arm, case: Case) -> None:
    """Take a step on a tiny table: kernels are kept, and most do not depend on the rows."""
    small = replace(case, rows=min(case.rows, _SMALL))
    step = arm.prepare(small)
    for batch in make_batches(small, [np.zeros(case.lookups, np.int32)]):
        step(batch)


class _Found(NamedTuple):
    """The steps that count; of one: kernel and roof, memory, counted bytes, seconds at first."""

    steps: list[Taken]
    in_place: InPlace | None = None
    after_lookup: AfterLookup | None = None
    memory: int | None = None
    counted: float | None = None
    first: float | None = None


def _anywhere(case: Case) -> Iterator[np.ndarray]:
    """Ids of steps that meet all of a table, without end."""
    return draw_ids(replace(case, skew="uniform"), sys.maxsize, seed=2)


def _take(arm: Arm, case: Case, ids: Ids) -> _Found:
    if arm.elsewhere is not None:
        return _Found([Taken(seconds) for seconds in arm.elsewhere(case, ids)])
    _compile(arm, case)
    timed, watched, looked_up = _parts(case, ids)
    step, batches = arm.prepare(case), make_batches(case, timed)
    need = peak_of(lambda: [step(batch) for batch in islice(batches, WARM)])
    settling = make_batches(case, _anywhere(case))
    settled_by = (
        []
        if arm.dense
        else settle(
            lambda count: [step(batch).whole for batch in islice(settling, count)], case.table_bytes
        )
    )
    first = float(np.median(settled_by[:LEAST_STEPS])) if settled_by else None
    steps, others = _run(step, batches), make_batches(case, watched)
    in_place = None if arm.dense else kernel_and_roof(step, others, case.width, WARM)
    after = None
    if isinstance(step, Halves) and not step.update.state.histories:
        after = after_lookup(step, make_batches(case, looked_up), WARM)
    return _Found(steps, in_place, after, need, _counted(step, case, ids), first)


def _parts(case: Case, ids: Ids) -> tuple[Ids, Ids, Ids]:
    """Of steps by themselves, that time the kernel, after a lookup; few ids serve several times."""
    some = min(_watched(case), max(_LEAST_WATCHED, len(ids) // 4))
    return ids[: max(_LEAST_WATCHED, len(ids) - 2 * some)], ids[-2 * some :][:some], ids[-some:]


def _run(step: Step, batches: Iterator[Batch]) -> list[Taken]:
    taken: list[Taken] = []
    for batch in batches:
        taken.append(step(batch))
        if len(taken) >= LEAST_STEPS and sum(t.whole for t in taken) > SECONDS:
            break
    return taken


def _counted(step: Step, case: Case, ids: Ids) -> float | None:
    """Bytes of a step by cache misses; over a few steps, because a counter has its own cost."""
    if counters.why_not(counters.CACHE_MISSES) is not None:
        return None
    batches = list(make_batches(case, ids[:LEAST_STEPS]))
    misses = counters.count(counters.CACHE_MISSES, lambda: [step(batch) for batch in batches])
    return None if misses is None else misses * counters.LINE_BYTES / len(batches)
