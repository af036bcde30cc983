# SPDX-License-Identifier: Apache-2.0
"""Curves of a run in a notebook, as SVG, drawn without a plotting package."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sparsetrain.system.chart import Chart, Series, svg

# The colors are legible on light and on dark pages.
_STYLE = """<style>
.sparsetrain { display: grid; gap: 1rem; max-width: 1000px;
  grid-template-columns: repeat(auto-fill, minmax(min(430px, 100%), 1fr)); }
.sparsetrain figure { margin: 0; }
.sparsetrain svg { display: block; width: 100%; }
.sparsetrain text { font-size: 11px; fill: currentColor; }
.sparsetrain .grid { stroke: currentColor; opacity: .15; }
.sparsetrain .line { fill: none; stroke: #4c8bf5; stroke-width: 2; }
.sparsetrain circle { fill: #4c8bf5; }
</style>"""


class Plot:
    """Charts of scores by epoch; a notebook shows them.

    Parameters
    ----------
    scores : mapping of str to sequence of (epoch, value)
    """

    def __init__(self, scores: Mapping[str, Sequence[tuple[float, float]]]) -> None:
        self.scores = scores

    def __repr__(self) -> str:
        return f"<Plot: {', '.join(self.scores)}>"

    def _repr_html_(self) -> str:
        charts = [
            Chart(name, "epoch", [Series(name, 0, "validation", points)])
            for name, points in self.scores.items()
        ]
        return f'{_STYLE}\n<div class="sparsetrain">{"".join(map(svg, charts))}</div>'


def plot_of(epochs: Sequence[Mapping[str, Any]], shown: Sequence[str]) -> Plot:
    """Return a chart for each of the `shown` scores that at least one epoch has."""
    numbered = [(number, epoch) for number, epoch in enumerate(epochs, 1)]
    points = {n: [(k, e[n]) for k, e in numbered if e.get(n) is not None] for n in shown}
    return Plot({name: found for name, found in points.items() if found})
