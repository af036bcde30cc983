# SPDX-License-Identifier: Apache-2.0
"""Charts of the logs of runs: losses, validation scores, speed.

`plot` draws them with Matplotlib, `report` as SVG.
"""

from collections.abc import Mapping, Sequence
from math import isfinite
from typing import Any, NamedTuple

from sparsetrain.system.chart import Chart, Series

# Title of the panel for each validation score.
_SCORES = {
    **{"loss": "loss", "logloss": "logloss", "auc": "AUC", "gauc": "gAUC", "rmse": "RMSE"},
    **{"ndcg@10": "NDCG@10", "hr@10": "HR@10"},
}
SPEED = "rows per second"

Line = Mapping[str, Any]


class Curve(NamedTuple):
    """A curve: its points, and its kind, "training", "validation" or "constant"."""

    label: str
    kind: str
    points: list[tuple[float, float]]  # step, value


def charts_of(runs: Sequence[tuple[str, Sequence[Line]]]) -> list[Chart]:
    """Return the charts of runs, passed as pairs of name and log; speed is the last chart.

    Each run has its own color, or with only one run, each label. Scores of a constant are gray.
    """
    several, charts = len(runs) > 1, dict[str, list[Series]]()
    for number, (run, log) in enumerate(runs):
        panels = panels_of(log)
        labels = [*dict.fromkeys(_label(curve) for own in panels.values() for curve in own)]
        for title, curves in panels.items():
            for curve in curves:
                own = None if curve.kind == "constant" else labels.index(_label(curve))
                shown = f"{run}, {curve.label}" if several else curve.label
                series = Series(shown, number if several else own, curve.kind, curve.points)
                charts.setdefault(title, []).append(series)
    found = [Chart(title, "step", each, title == SPEED) for title, each in charts.items()]
    return sorted(found, key=lambda chart: chart.title == SPEED)


def _label(curve: Curve) -> str:
    return curve.label.rpartition(", ")[0]


def panels_of(lines: Sequence[Line]) -> Mapping[str, Sequence[Curve]]:
    """Return the panels of a log with their curves, without empty curves and panels."""
    training = [line for line in lines if line.get("split") == "train"]
    valid = [line for line in lines if line.get("split") == "valid"]
    # If the only label has classes, the training loss is the logloss.
    loss = "logloss" if any("logloss" in line for line in valid) else "loss"
    panels = {loss: [Curve("training", "training", _points(training, "loss"))]}
    for name in dict.fromkeys(name for line in valid for name in line):
        label, _, score = name.rpartition(".")
        title = _SCORES.get(score.removeprefix("constant_"))
        if title is not None:
            kind = "constant" if score.startswith("constant_") else "validation"
            shown = "a constant" if kind == "constant" else kind
            curve = Curve(f"{label}, {shown}" if label else shown, kind, _points(valid, name))
            panels.setdefault(title, []).append(curve)
    panels[SPEED] = [Curve("training", "training", _points(steady(lines), "rows_per_s"))]
    drawn = {title: [c for c in curves if c.points] for title, curves in panels.items()}
    return {title: curves for title, curves in drawn.items() if curves}


def steady(lines: Sequence[Line]) -> list[Line]:
    """Return the log lines that measure the speed of training alone.

    The first line of an epoch, or after a validation, includes the wait for rows and cold caches;
    the last line of an epoch has few rows. If no other lines exist, all are returned.
    """
    training = [line for line in lines if line.get("split") == "train"]
    most = max((line.get("rows") or 0 for line in training), default=0)
    found = [
        line
        for before, line in zip(lines, lines[1:], strict=False)
        if before.get("split") == line.get("split") == "train"
        and before.get("epoch") == line.get("epoch")
        and 2 * (line.get("rows") or 0) >= most
    ]
    return found or training


def _points(lines: Sequence[Line], name: str) -> list[tuple[float, float]]:
    pairs = ((line.get("step"), line.get(name)) for line in lines)
    return [(x, y) for x, y in pairs if x is not None and y is not None and isfinite(x + y)]
