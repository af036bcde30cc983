# SPDX-License-Identifier: Apache-2.0
"""Plots of a comparison: time and memory against rows, with the crossing, or a bar for each table.

They need Matplotlib (extra `plot`). Colours are Okabe and Ito's, which people with any colour
vision can tell apart; each curve has its own marker as well.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import floor, log10
from pathlib import Path
from typing import Any, NamedTuple

from sparsetrain.compare.arms import ARMS
from sparsetrain.compare.case import Case
from sparsetrain.compare.report import Measurement, Report
from sparsetrain.errors import ConfigError

_SIZE = (6.6, 4.2)  # inches
_DPI = 200
_GREY = "0.45"
_STYLE: Any = {
    "axes.titlesize": 11,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.alpha": 0.25,
    "lines.markersize": 5,
    "legend.frameon": False,
    "svg.fonttype": "none",
    "svg.hashsalt": "sparsetrain",
}


class _Look(NamedTuple):
    color: str
    marker: str


_LOOKS = {
    "stock": _Look("#D55E00", "s"),
    "dense": _Look("#0072B2", "D"),
    "sparse": _Look("#009E73", "o"),
    "exact": _Look("#CC79A7", "^"),
}


def draw(report: Report, folder: str | Path) -> list[Path]:
    """Draw every plot that a report has measurements for; return the files, PNG and SVG.

    Raises
    ------
    ConfigError
        If Matplotlib is not installed.
    """
    try:
        from matplotlib import rc_context
    except ImportError:
        raise ConfigError("plots need Matplotlib: pip install 'sparsetrain[plot]'") from None

    files: list[Path] = []
    with rc_context(rc=_STYLE):
        for (formula, labelled), points in report.groups.items():
            for name, plot in (_TABLES if labelled else _SWEEPS).items():
                files += _save(plot(report, points), Path(folder) / f"{name}-{formula}")
    return files


def _time_by_rows(report: Report, points: Sequence[Measurement]) -> Any:
    figure, axes = _axes("rows of the table", "time of an update (µs)")
    for arm, own in _by_arm(points):
        look, xs = _LOOKS[arm], [p.case.rows for p in own]
        low, high = [p.p10_us for p in own], [p.p90_us for p in own]
        axes.fill_between(xs, low, high, color=look.color, alpha=0.2, linewidth=0)
        medians = [p.median_us for p in own]
        axes.plot(xs, medians, color=look.color, marker=look.marker, label=ARMS[arm].label)
    first = points[0].case
    for crossing in report.crossings:
        if (crossing.formula, crossing.lookups) == (first.formula, first.lookups) and crossing.rows:
            label = f"equal at {crossing.rounded:,} rows"
            axes.axvline(crossing.rows, color=_GREY, linestyle=":", zorder=1, label=label)
    title = f"{_formula(first)}: {first.lookups:,} {first.skew} lookups, width {first.width}"
    axes.set_title(title, loc="left")
    axes.legend()
    return figure


def _memory_by_rows(report: Report, points: Sequence[Measurement]) -> Any:
    """Markers are measured, lines follow from the formula."""
    del report
    figure, axes = _axes("rows of the table", "memory of a step on top of table and slots (bytes)")
    for arm, own in _by_arm(points):
        look, rows = _LOOKS[arm], [p.case.rows for p in own]
        formula = [p.formula_memory_bytes for p in own]
        axes.plot(rows, formula, color=look.color, label=ARMS[arm].label)
        measured = [(p.case.rows, p.memory_bytes) for p in own if p.memory_bytes]
        if measured:
            axes.plot(*zip(*measured, strict=True), look.marker, color=look.color)
    tables = {p.case.rows: p.case.table_bytes for p in points}
    axes.plot(list(tables), list(tables.values()), "--", color=_GREY, label="the table itself")
    axes.set_title(f"{_formula(points[0].case)}: markers measured, lines by formula", loc="left")
    axes.legend()
    return figure


def _tables(report: Report, points: Sequence[Measurement]) -> Any:
    """Draw a bar for each table of a model and each arm, the largest table on top."""
    del report
    from matplotlib.figure import Figure

    arms = list(_by_arm(points))
    cases = {p.case.label: p.case for p in points}
    labels = sorted(cases, key=lambda label: cases[label].rows)
    figure = Figure(figsize=(_SIZE[0], 1.2 + 0.28 * len(labels)), layout="constrained")
    axes = figure.subplots()
    height = 0.8 / len(arms)
    for number, (arm, own) in enumerate(arms):
        places = [labels.index(p.case.label) + 0.4 - (number + 0.5) * height for p in own]
        times, label = [p.median_us for p in own], ARMS[arm].label
        axes.barh(places, times, height=height, color=_LOOKS[arm].color, label=label)
    axes.set_yticks(range(len(labels)), [f"{x} ({cases[x].rows:,})" for x in labels], fontsize=8)
    axes.set_xscale("log")
    axes.set_xlim(left=10 ** floor(log10(min(p.median_us for p in points))))
    axes.set_xlabel("time of an update (µs)")
    axes.grid(axis="y", visible=False)
    figure.legend(loc="outside upper center", frameon=False, ncols=min(len(arms), 2))
    first = points[0].case
    axes.set_ylabel(f"table (rows), {first.lookups:,} lookups, {_formula(first)}")
    return figure


# File name -> the function that draws it.
_SWEEPS = {"time-by-rows": _time_by_rows, "memory-by-rows": _memory_by_rows}
_TABLES = {"tables": _tables}


def _axes(x: str, y: str) -> tuple[Any, Any]:
    from matplotlib.figure import Figure

    figure = Figure(figsize=_SIZE, layout="constrained")
    axes = figure.subplots()
    axes.set(xlabel=x, ylabel=y, xscale="log", yscale="log")
    return figure, axes


def _by_arm(points: Sequence[Measurement]) -> Iterator[tuple[str, list[Measurement]]]:
    for arm in _LOOKS:
        own = [p for p in points if p.arm == arm]
        if own:
            yield arm, own


def _formula(case: Case) -> str:
    names = {"sgd": "SGD", "rowwise_adagrad": "row-wise Adagrad"}
    return names.get(case.formula, case.formula.capitalize())


def _save(figure: Any, base: Path) -> list[Path]:
    base.parent.mkdir(parents=True, exist_ok=True)
    files = [base.with_suffix(suffix) for suffix in (".png", ".svg")]
    for file in files:
        metadata = {"Date": None} if file.suffix == ".svg" else {}  # the same bytes each time
        figure.savefig(file, dpi=_DPI, metadata=metadata)
    return files
