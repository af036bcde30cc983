# SPDX-License-Identifier: Apache-2.0
"""What a comparison says in words about the trainer's own choice, the column `auto` of its table.

The trainer decides for all tables of a storage at once, and by trials of its own. Where its path is
not the one that was faster here, the reader is told so and why.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import sparsetrain as st

CLEAR = 0.05  # of a time: what is closer is noise, or not worth a buffer
_MOST_NAMES = 6
_BUSY = (
    "auto: the machine was too busy to tell which path is cheaper, so the trainer would take the "
    "sparse one; a run in a quiet minute measures again and may choose otherwise"
)
_TOGETHER = (
    "auto: what the trainer does with a model of all these tables; it sorts and updates them "
    "together"
)
_WHOLE = ", so the row of all counts, not each table by itself"
_TRIED = (
    "the trainer tries both on Zipf ids of its own and goes dense where that saves 25 %, or 5 % in "
    "three runs"
)


def describe_auto(report: st.compare.Report) -> list[str]:
    """Lines below the table; of single tables none where the trainer takes the faster path."""
    of_model, whole = report.of("tables"), report.of("storage")
    others = [m for m in report.measurements if m.sweep not in ("tables", "storage")]
    return [
        *([] if report.machine.get("auto_known", True) else [_BUSY]),
        *([_TOGETHER + _WHOLE * bool(whole)] if len({m.case for m in of_model}) > 1 else []),
        *_slower(of_model, "it decides for all together"),
        *_slower([*whole, *others], _TRIED),
    ]


def _slower(points: Sequence[st.compare.Measurement], why: str) -> Iterator[str]:
    """Name the cases in which the path that the trainer takes was clearly the slower one."""
    cases = dict.fromkeys(m.case for m in points)
    names = []
    for case in cases:
        times = {m.arm: m.median_us for m in points if m.case == case}
        auto = next(m.auto for m in points if m.case == case)
        other = {"sparse": "dense", "dense": "sparse"}.get(auto)
        if auto in times and other in times and times[auto] > (1 + CLEAR) * times[other]:
            names.append(_name(case))
    if names:
        some = names if len(names) <= _MOST_NAMES else [f"{len(names)} of {len(cases)} cases"]
        yield f"auto is the slower path here for {', '.join(some)}: {why}"


def _name(case: st.compare.Case) -> str:
    unnamed = f"{case.rows:,} rows at {case.lookups:,} {case.skew} ids"
    return unnamed if case.label == "table" else case.label
