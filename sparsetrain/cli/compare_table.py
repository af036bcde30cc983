# SPDX-License-Identifier: Apache-2.0
"""Text form of a comparison: a table for each sweep, the crossings, and the cases left out."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import TYPE_CHECKING

from sparsetrain.cli.output import format_table

if TYPE_CHECKING:
    import sparsetrain as st

# Sweep -> heading of its first column, and the field of the case shown there.
_AXES = {
    "rows": ("rows", "rows"),
    "lookups": ("lookups", "lookups"),
    "width": ("width", "width"),
    "skew": ("ids", "skew"),
    "pooling": ("ids of a bag", "pooling"),
    "threads": ("threads", "threads"),
    "tables": ("table", "label"),
}


def describe(report: st.compare.Report) -> str:
    """Return all of a report as text."""
    machine = report.machine
    parts = [f"{machine['processor']}, {machine['threads']} threads\n"]
    points = sorted(report.measurements, key=_group)
    parts += [_table(list(group)) for _, group in groupby(points, key=_group)]
    parts += [_describe_crossing(crossing) for crossing in report.crossings]
    parts += _describe_left_out(report)
    return "\n".join(parts)


def _group(m: st.compare.Measurement) -> tuple[int, str]:
    """The storage of a model is the last row of its tables."""
    axis = "tables" if m.sweep == "storage" else m.sweep
    return list(_AXES).index(axis), m.case.formula


def _table(points: Sequence[st.compare.Measurement]) -> str:
    heading, field = _AXES[points[0].sweep]
    arms = list(dict.fromkeys(p.arm for p in points))
    size = ["rows"] if field == "label" else []  # a table's name does not say how large it is
    ratios = [arm for arm in ("stock", "dense") if {arm, "sparse"} <= {*arms}]
    rows = [[heading, *size, "unique", *arms]]
    rows[0] += [f"{arm}/sparse" for arm in ratios] + [f"{arm}, MB" for arm in arms]
    for case in dict.fromkeys(p.case for p in points):
        by_arm = {p.arm: p for p in points if p.case == case}
        value = getattr(case, field)
        row = [f"{value:,}" if isinstance(value, int) else value, *(f"{case.rows:,}" for _ in size)]
        row.append(f"{next(iter(by_arm.values())).unique:,.0f}")
        row += [_time(by_arm.get(arm)) for arm in arms]
        row += [_ratio(by_arm.get(arm), by_arm.get("sparse")) for arm in ratios]
        row += [_memory(by_arm.get(arm)) for arm in arms]
        rows.append(row)
    formula = points[0].case.formula
    title = f"{formula}: median µs of an update (p10 to p90), memory on top of table and slots"
    return f"{title}\n{format_table(rows)}\n"


def _time(m: st.compare.Measurement | None) -> str:
    return f"{_us(m.median_us)} ({_us(m.p10_us)} to {_us(m.p90_us)})" if m else "-"


def _us(time: float) -> str:
    return f"{time:,.0f}" if time >= 100 else f"{time:.1f}"


def _ratio(m: st.compare.Measurement | None, sparse: st.compare.Measurement | None) -> str:
    return f"{m.median_us / sparse.median_us:,.1f}" if m and sparse else "-"


def _memory(m: st.compare.Measurement | None) -> str:
    """By formula, which the measured bytes confirm but for what the system rounds."""
    return f"{m.formula_memory_bytes / 1e6:,.2f}" if m else "-"


def _describe_crossing(c: st.compare.Crossing) -> str:
    head = f"{c.formula}, {c.lookups:,} lookups: "
    if c.rows is None:
        rows = " and ".join(f"{rows:,}" for rows in c.exceptions)
        exceptions = f", except at {rows}" if rows else ""
        return f"{head}{c.below} is faster from {c.least:,} to {c.most:,} rows{exceptions}"
    return f"{head}{c.below} is faster below about {c.rounded:,} rows, {c.above} above"


def _describe_left_out(report: st.compare.Report) -> Iterator[str]:
    for reason in dict.fromkeys(o.reason for o in report.left_out):
        cases = [o for o in report.left_out if o.reason == reason]
        where = str(cases[0].case) if len(cases) == 1 else f"{len(cases)} cases"
        yield f"left out: {cases[0].arm}, {where}: {reason}"
