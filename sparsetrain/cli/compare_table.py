# SPDX-License-Identifier: Apache-2.0
"""A comparison as text: for each sweep a table, then where the arms cross and what was left out."""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import sparsetrain as st

# Sweep -> what its first column is called, and the field of the case that is in it.
_AXIS = {
    "rows": ("rows", "rows"),
    "lookups": ("lookups", "lookups"),
    "width": ("width", "width"),
    "skew": ("ids", "skew"),
    "pooling": ("ids of a bag", "pooling"),
    "threads": ("threads", "threads"),
    "tables": ("table", "label"),
}
# Columns before those of the arms, and after them.
_BEFORE = ("unique", "roof")
_AFTER = (
    *("after a lookup", "stock/sparse", "dense/sparse"),
    *("roof/update", "roof/writes", "roof/kernel"),
)
_WIDEST = 1000  # nothing is cut; a narrow terminal wraps lines
_DISTURBED = 0.1  # cores


def describe(report: st.compare.Report) -> str:
    """Return all of a report for people."""
    parts = [_machine(report)]
    found = sorted(report.measurements, key=_group)
    parts += [_table(list(group)) for _, group in groupby(found, key=_group)]
    parts += [_crossing(crossing) for crossing in report.crossings]
    parts += _left_out(report)
    return "\n".join(parts)


def _group(m: st.compare.Measurement) -> tuple[int, str]:
    """The storage is the last row of its tables."""
    axis = "tables" if m.sweep == "storage" else m.sweep
    return list(_AXIS).index(axis), m.case.formula


def _machine(report: st.compare.Report) -> str:
    machine = report.machine
    busy = machine.get("others_cores")
    lines = [
        f"{machine['processor']}, {machine['threads']} threads; memory streams at "
        f"{report.stream / 1e9:.1f} GB/s; memory traffic by counters: {machine['counters']}"
    ]
    if busy is not None and busy > _DISTURBED:
        lines.append(f"Other processes kept {busy:.2f} cores busy meanwhile: times are too long.")
    return "\n".join(lines) + "\n"


def _table(points: Sequence[st.compare.Measurement]) -> str:
    from rich.console import Console
    from rich.table import Table

    heading, field = _AXIS[points[0].sweep]
    first = points[0].case
    title = f"{first.formula}, median µs of an update (p10 to p90)"
    table = Table(title=title, title_justify="left", box=None, pad_edge=False, header_style="")
    names = list(dict.fromkeys(p.arm for p in points))
    for column in [heading, *_rows_too(field), *_BEFORE, *names, *_AFTER]:
        table.add_column(column, justify="left" if column == "table" else "right", no_wrap=True)
    cases = dict.fromkeys(p.case for p in points)
    for case in cases:
        of_case = {p.arm: p for p in points if p.case == case}
        rows = [f"{getattr(case, name):,}" for name in _rows_too(field)]
        table.add_row(_place(getattr(case, field)), *rows, *_cells(of_case, names))
    stream = io.StringIO()
    Console(file=stream, width=_WIDEST, color_system=None).print(table)
    return "\n".join(line.rstrip() for line in stream.getvalue().splitlines()) + "\n"


def _rows_too(field: str) -> list[str]:
    """A table's name does not say how large it is."""
    return ["rows"] if field == "label" else []


def _place(value: Any) -> str:
    return f"{value:,}" if isinstance(value, int) else str(value)


def _cells(found: dict[str, st.compare.Measurement], names: list[str]) -> Iterator[str]:
    anyone = next(iter(found.values()))
    yield f"{anyone.unique:,.0f}"
    yield f"{anyone.roof_us:,.1f}" if anyone.roof_us else "-"
    for name in names:
        m = found.get(name)
        low_high = f" ({_us(m.p10_us)} to {_us(m.p90_us)})" if m else ""
        yield f"{_us(m.median_us)}{low_high}" if m else "-"
    sparse = found.get("sparse")
    yield _us(sparse.after_lookup_us) if sparse and sparse.after_lookup_us else "-"
    yield from _ratios(found)


def _ratios(found: dict[str, st.compare.Measurement]) -> Iterator[str]:
    sparse = found.get("sparse")
    for name in ("stock", "dense"):
        other = found.get(name)
        yield f"{other.median_us / sparse.median_us:,.1f}" if other and sparse else "-"
    yield from _roof_shares(sparse) if sparse else ["-"] * 3


def _roof_shares(sparse: st.compare.Measurement) -> Iterator[str]:
    """Of the update, of its writes, and of the kernel; that roof was measured beside the kernel."""
    roof = sparse.roof_us
    pairs = ((roof, sparse.median_us), (roof, sparse.writes_us))
    for of, part in (*pairs, (sparse.kernel_roof_us, sparse.kernel_us)):
        yield f"{of / part:.0%}" if of and part else "-"


def _us(time: float) -> str:
    return f"{time:,.0f}" if time >= 100 else f"{time:.1f}"


def _crossing(c: st.compare.Crossing) -> str:
    head = f"{c.formula}, {c.lookups:,} lookups: "
    if c.rows is None:
        but = f", but not at {' and '.join(f'{rows:,}' for rows in c.except_at)}"
        reach = f"{c.below} is faster on tables from {c.least:,} to {c.most:,} rows"
        return f"{head}{reach}{but if c.except_at else ''}"
    return f"{head}{c.below} is faster below about {c.about:,} rows, {c.above} above"


def _left_out(report: st.compare.Report) -> Iterator[str]:
    whys = [(o.why, o) for o in report.left_out]
    for why in dict.fromkeys(why for why, _ in whys):
        some = [o for known, o in whys if known == why]
        where = str(some[0].case) if len(some) == 1 else f"{len(some)} cases"
        yield f"left out: {some[0].arm}, {where}: {why}"
