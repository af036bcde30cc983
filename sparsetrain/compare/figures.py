# SPDX-License-Identifier: Apache-2.0
"""The pictures of a comparison: a rule table from a name to what draws it.

Time against rows, memory against rows, bandwidth against width, time against the other axes, and a
bar for each table of a model. Matplotlib (extra `plot`) is needed for this alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from math import floor, log10, nan
from pathlib import Path
from typing import Any

from sparsetrain.compare.measurement import Measurement
from sparsetrain.compare.report import Report
from sparsetrain.compare.series import (
    GREY,
    LOOKS,
    STYLE,
    band,
    by_arm,
    curve,
    label_of,
    note_end,
    spread_ends,
)
from sparsetrain.errors import ConfigError

SUFFIXES = (".png", ".svg")
_SIZE = (6.6, 4.2)  # inches
_DPI = 200


def require_matplotlib() -> None:
    """Raise `ConfigError` if nothing can be drawn."""
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        raise ConfigError("drawing needs Matplotlib: pip install 'sparsetrain[plot]'") from None


def draw(report: Report, folder: str | Path) -> list[Path]:
    """Draw all that a report has figures for; returns the files, a PNG and an SVG each.

    Raises
    ------
    ConfigError
        If Matplotlib is not installed.
    """
    require_matplotlib()
    from matplotlib import rc_context

    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    files: list[Path] = []
    for formula in dict.fromkeys(m.case.formula for m in report.measurements):
        for name, (sweep, picture) in PICTURES.items():
            points = report.of(sweep, formula)
            if points:
                with rc_context(rc=STYLE):
                    figure = picture(report, points)
                    files += _save(figure, folder / f"{name}-{formula}")
    return files


def time_by_rows(report: Report, points: Sequence[Measurement]) -> Any:
    """Microseconds against rows, with both roofs and the crossing."""
    figure, axes = _figure("rows of the table", "time of an update (µs)")
    first = points[0].case
    for arm, some in by_arm(points).items():
        rows = [p.case.rows for p in some]
        band(axes, arm, rows, some)
        curve(axes, arm, rows, [p.median_us for p in some])
        _after_lookup(axes, arm, [p for p in some if p.after_lookup_us])
    _roofs(axes, report, points)
    _crossing(axes, report, points)
    axes.set_title(
        f"{_formula(first.formula)}: {first.lookups:,} {first.skew} lookups, width {first.width}",
        loc="left",
    )
    return _finished(figure, axes)


def memory_by(axis: str, title: str) -> Callable[[Report, Sequence[Measurement]], Any]:
    """A picture of the bytes of a step: marks are measured, lines follow from the formula."""

    def picture(report: Report, points: Sequence[Measurement]) -> Any:
        del report
        figure, axes = _figure(title, "memory of a step beside table and slots (bytes)")
        for arm, some in by_arm([p for p in points if p.memory_bytes]).items():
            look, xs = LOOKS[arm], [getattr(p.case, axis) for p in some]
            axes.plot(xs, [p.formula_memory_bytes for p in some], color=look.color)
            seen = [p.memory_bytes for p in some]
            axes.plot(xs, seen, look.marker, color=look.color, zorder=3)
            note_end(axes, label_of(arm), xs[-1], some[-1].formula_memory_bytes, look.color)
        table = {getattr(p.case, axis): p.case.table_bytes for p in points}
        _dashed(axes, list(table), list(table.values()), "the table itself")
        axes.set_title(
            f"{_formula(points[0].case.formula)}: marks measured, lines by formula", loc="left"
        )
        return _finished(figure, axes)

    return picture


def bandwidth_by_width(report: Report, points: Sequence[Measurement]) -> Any:
    """Bytes per second against width, with the stream's roof and that of random rows."""
    figure, axes = _figure(
        "width of a row (float32 numbers)", "bytes that must move, per second (GB/s)"
    )
    for arm, some in by_arm(points).items():
        widths = [p.case.width for p in some]
        curve(axes, arm, widths, [p.bandwidth / 1e9 for p in some])
        if arm == "sparse":
            rates = [_writes_rate(p) for p in some]
            axes.plot(widths, rates, color=LOOKS[arm].color, linestyle=":", zorder=3)
            note_end(axes, "row-sparse, writes alone", widths[-1], rates[-1], LOOKS[arm].color)
    widths = sorted({p.case.width for p in points})
    _dashed(axes, widths, [report.stream / 1e9] * len(widths), "roof: stream")
    roofs = {p.case.width: _roof_rate(p) for p in points if p.roof_us}
    _dashed(axes, list(roofs), list(roofs.values()), "roof: random rows")
    axes.set_xticks(widths, [str(width) for width in widths], minor=False)
    axes.set_xticks([], minor=True)
    first = points[0].case
    axes.set_title(
        f"{_formula(first.formula)}: {first.lookups:,} lookups, a table of "
        f"{first.table_bytes / 1e6:,.0f} MB",
        loc="left",
    )
    return _finished(figure, axes)


def time_by(axis: str, title: str) -> Callable[[Report, Sequence[Measurement]], Any]:
    """A picture of time against a field of the case."""

    def picture(report: Report, points: Sequence[Measurement]) -> Any:
        del report
        places = {getattr(p.case, axis): getattr(p.case, axis) for p in points}
        named = any(isinstance(place, str) for place in places)
        figure, axes = _figure(title, "time of an update (µs)", log_x=not named)
        if named:
            places = {name: number for number, name in enumerate(places)}
            axes.set_xticks(list(places.values()), list(places))
        for arm, some in by_arm(points).items():
            xs = [places[getattr(p.case, axis)] for p in some]
            band(axes, arm, xs, some)
            curve(axes, arm, xs, [p.median_us for p in some])
        first = points[0].case
        axes.set_title(
            f"{_formula(first.formula)}: {first.rows:,} rows of width {first.width}", loc="left"
        )
        return _finished(figure, axes)

    return picture


def tables(report: Report, points: Sequence[Measurement]) -> Any:
    """A bar for each table of a model and each arm, the largest table on top."""
    del report
    from matplotlib.figure import Figure

    arms = by_arm(points)
    cases = {p.case.label: p.case for p in points}
    labels = sorted(cases, key=lambda label: cases[label].rows)
    figure = Figure(figsize=(_SIZE[0], 1.2 + 0.28 * len(labels)), layout="constrained")
    axes = figure.subplots()
    height, least = 0.8 / len(arms), float("inf")
    for number, (arm, some) in enumerate(arms.items()):
        found = {p.case.label: p for p in some}
        place = {x: n + 0.4 - (number + 0.5) * height for n, x in enumerate(labels) if x in found}
        times = [found[label].median_us for label in place]
        name = f"{label_of(arm)} ({sum(times) / 1e3:,.2f} ms in all)"
        bars = list(place.values())
        axes.barh(bars, times, height=height, color=LOOKS[arm].color, label=name)
        least = min(least, *times)
    axes.set_yticks(range(len(labels)), [f"{x} ({cases[x].rows:,})" for x in labels], fontsize=8)
    axes.set_xscale("log")
    axes.set_xlim(left=10 ** floor(log10(least)))
    axes.set_xlabel("time of an update (µs)")
    axes.grid(axis="y", visible=False)
    axes.margins(y=0.01)
    first = points[0].case
    figure.legend(loc="outside upper center", frameon=False, ncols=min(len(arms), 2))
    axes.set_ylabel(f"table (rows), {first.lookups:,} lookups, {_formula(first.formula)}")
    return figure


# Name of a file -> sweep that it shows, and what draws it.
PICTURES: dict[str, tuple[str, Callable[[Report, Sequence[Measurement]], Any]]] = {
    "time-by-rows": ("rows", time_by_rows),
    "memory-by-rows": ("rows", memory_by("rows", "rows of the table")),
    "memory-by-lookups": ("lookups", memory_by("lookups", "lookups of a step")),
    "bandwidth-by-width": ("width", bandwidth_by_width),
    "time-by-lookups": ("lookups", time_by("lookups", "lookups of a step")),
    "time-by-skew": ("skew", time_by("skew", "law of the ids")),
    "time-by-pooling": ("pooling", time_by("pooling", "ids of a bag")),
    "time-by-threads": ("threads", time_by("threads", "threads")),
    "tables": ("tables", tables),
}


def _figure(x: str, y: str, *, log_x: bool = True) -> tuple[Any, Any]:
    from matplotlib.figure import Figure

    figure = Figure(figsize=_SIZE, dpi=_DPI, layout="constrained")
    axes = figure.subplots()
    axes.set(xlabel=x, ylabel=y, yscale="log")
    if log_x:
        axes.set_xscale("log")
    return figure, axes


def _finished(figure: Any, axes: Any) -> Any:
    _plain_numbers(axes.yaxis)
    spread_ends(figure, axes)
    return figure


def _plain_numbers(axis: Any) -> None:
    """1, 2 and 5 of each power of ten, written out, where powers of ten alone would be too few."""
    from matplotlib.ticker import LogLocator, NullFormatter

    low, high = axis.get_view_interval()
    if high < 100 * low:
        axis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axis.set_major_formatter("{x:,g}")
        axis.set_minor_formatter(NullFormatter())


def _roofs(axes: Any, report: Report, points: Sequence[Measurement]) -> None:
    """Least times: of a dense update by the stream, of a sparse one by random rows."""
    dense = {p.case.rows: 1e6 * p.traffic_bytes / report.stream for p in points if p.arm == "dense"}
    random = {p.case.rows: p.roof_us for p in points if p.roof_us}
    for found, name in ((dense, "roof: stream"), (random, "roof: random rows")):
        _dashed(axes, list(found), list(found.values()), name)


def _after_lookup(axes: Any, arm: str, points: Sequence[Measurement]) -> None:
    """Updates of rows that a lookup has just read, as in training."""
    if points:
        rows, times = [p.case.rows for p in points], [p.after_lookup_us or nan for p in points]
        axes.plot(rows, times, color=LOOKS[arm].color, linestyle=":", zorder=3)
        note_end(axes, f"{label_of(arm)}, after its lookup", rows[-1], times[-1], LOOKS[arm].color)


def _crossing(axes: Any, report: Report, points: Sequence[Measurement]) -> None:
    first = points[0].case
    for crossing in report.crossings:
        if (crossing.formula, crossing.lookups) == (first.formula, first.lookups) and crossing.rows:
            axes.axvline(crossing.rows, color=GREY, linewidth=1, linestyle=":", zorder=1)
            axes.annotate(
                f"equal at {crossing.about:,} rows",
                (crossing.rows, 0.98),
                xycoords=("data", "axes fraction"),
                xytext=(5, 0),
                textcoords="offset points",
                va="top",
                color=GREY,
            )


def _dashed(axes: Any, xs: Sequence[float], ys: Sequence[float], name: str) -> None:
    if xs:
        axes.plot(xs, ys, color=GREY, linestyle="--", linewidth=1.2, zorder=1)
        note_end(axes, name, xs[-1], ys[-1], GREY)


def _writes_rate(p: Measurement) -> float:
    return p.traffic_bytes / 1e3 / p.writes_us if p.writes_us else nan


def _roof_rate(p: Measurement) -> float:
    assert p.roof_us is not None
    return 2 * p.unique * p.case.row_bytes / 1e3 / p.roof_us


def _formula(name: str) -> str:
    return {"sgd": "SGD", "rowwise_adagrad": "row-wise Adagrad"}.get(name, name.capitalize())


def _save(figure: Any, base: Path) -> Iterable[Path]:
    files = [base.with_suffix(suffix) for suffix in SUFFIXES]
    for file in files:
        meta = {"Date": None} if file.suffix == ".svg" else {}
        figure.savefig(file, dpi=_DPI, metadata=meta, bbox_inches="tight", pad_inches=0.06)
    return files
