# SPDX-License-Identifier: Apache-2.0
"""Line charts as inline SVG; the page's style sheet sets their colors."""

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from sparsetrain.system.html import Markup, escape

Point = tuple[float, float]
_WIDTH, _HEIGHT = 460, 230
_LEFT, _RIGHT, _TOP, _BOTTOM = 50, 448, 8, 198  # edges of the plot area
_MOST_POINTS = 200  # per curve; more points are averaged


class Series(NamedTuple):
    """A curve of a chart."""

    label: str
    color: int | None  # number of a style-sheet color; None is grey
    kind: str  # "training", "validation", "constant" or "area"
    points: Sequence[Point]


class Chart(NamedTuple):
    """Curves with the same axes."""

    title: str
    x_name: str
    series: Sequence[Series]
    from_zero: bool = False  # whether the vertical axis begins at 0
    is_log: bool = False  # whether both axes are logarithmic


def svg(chart: Chart) -> Markup:
    """Return a chart as an HTML figure."""
    title = escape(chart.title)
    series = [one._replace(points=_averaged(one.points)) for one in chart.series]
    x_axis = _Axis([x for one in series for x, _ in one.points], _LEFT, _RIGHT, 6)
    values = [y for one in series for _, y in one.points] + [0.0] * chart.from_zero
    y_axis = _Axis(values, _BOTTOM, _TOP, 5)
    parts = [_grid(x_axis, y_axis), *(_curve(one, x_axis, y_axis) for one in series)]
    return Markup(
        f'<figure><figcaption>{title}</figcaption><svg viewBox="0 0 {_WIDTH} {_HEIGHT}" '
        f'role="img" aria-label="{title}">{"".join(parts)}'
        f'<text x="{_RIGHT}" y="{_HEIGHT - 4}" text-anchor="end">{escape(chart.x_name)}</text>'
        "</svg></figure>"
    )


class _Axis:
    """A linear axis: maps values to pixels, and has ticks."""

    def __init__(self, values: Sequence[float], start: float, end: float, ticks: int) -> None:
        low, high = min(values), max(values)
        if high - low < 1e-12 * max(abs(low), abs(high), 1e-300):  # all values are equal
            low, high = low - (abs(low) or 1) / 2, high + (abs(high) or 1) / 2
        exact = (high - low) / ticks
        power = 10.0 ** math.floor(math.log10(exact))
        self.step = next(s * power for s in (1, 2, 2.5, 5, 10) if s * power >= 0.999 * exact)
        margin = 0.03 * (high - low)
        self.low = low if low == 0 else low - margin
        self.scale = (end - start) / (high + margin - self.low)
        self.start, self.high = start, high + margin

    def at(self, value: float) -> float:
        return round(self.start + (value - self.low) * self.scale, 1)

    def ticks(self) -> Iterator[float]:
        first = math.ceil(self.low / self.step)
        for number in range(first, math.floor(self.high / self.step) + 1):
            yield number * self.step


def _grid(x_axis: _Axis, y_axis: _Axis) -> str:
    lines = [
        f'<path class="grid" d="M{_LEFT} {y_axis.at(tick)}H{_RIGHT}"/>'
        f'<text x="{_LEFT - 5}" y="{y_axis.at(tick) + 4}" text-anchor="end">{short(tick)}</text>'
        for tick in y_axis.ticks()
    ]
    lines += [
        f'<text x="{x_axis.at(tick)}" y="{_BOTTOM + 15}" text-anchor="middle">{short(tick)}</text>'
        for tick in x_axis.ticks()
    ]
    return "".join(lines)


def _curve(series: Series, x_axis: _Axis, y_axis: _Axis) -> str:
    places = [(x_axis.at(x), y_axis.at(y)) for x, y in series.points]
    path = "M" + "L".join(f"{x} {y}" for x, y in places)
    style = f"{'muted' if series.color is None else f'c{series.color}'} {series.kind}"
    shapes = f'<path class="line {style}" d="{path}"/>'
    if series.kind == "area":
        floor = y_axis.at(max(0.0, y_axis.low))
        shapes += f'<path class="fill {style}" d="{path}V{floor}H{places[0][0]}Z"/>'
    if series.kind in ("training", "validation"):
        label = escape(series.label)
        shapes += f'<g class="dots {style}">' + "".join(
            f'<circle cx="{cx}" cy="{cy}" r="{3 if series.kind == "validation" else 5}">'
            f"<title>{label}: {x:,.6g}, {y:,.5g}</title></circle>"
            for (cx, cy), (x, y) in zip(places, series.points, strict=True)
        )
        shapes += "</g>"
    return shapes


def _averaged(points: Sequence[Point]) -> Sequence[Point]:
    """Return at most `_MOST_POINTS` points; if there are more, average neighbors."""
    size = -(-len(points) // _MOST_POINTS)
    groups = [points[i : i + size] for i in range(0, len(points), size)] if size > 1 else []
    means = [(sum(x for x, _ in g) / len(g), sum(y for _, y in g) / len(g)) for g in groups]
    return means or points


def short(value: float) -> str:
    """Return the text of a tick's number."""
    for unit, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= unit:
            return f"{value / unit:.6g}{letter}"
    return f"{value:,.6g}"
