# SPDX-License-Identifier: Apache-2.0
"""How an arm looks in every picture, and the handling of axes that all pictures share.

Colours are Okabe and Ito's, which people with any colour vision can tell apart; every curve also
has its own marker and its name beside it, so nothing hangs on colour.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from sparsetrain.compare.arms import ARMS
from sparsetrain.compare.measurement import Measurement
from sparsetrain.compare.peers import PEERS

GREY = "0.45"


class Look(NamedTuple):
    """Colour and marker of an arm."""

    color: str
    marker: str


LOOKS = {
    "stock": Look("#D55E00", "s"),
    "dense": Look("#0072B2", "D"),
    "sparse": Look("#009E73", "o"),
    "exact": Look("#CC79A7", "^"),
    "torch-dense": Look("#E69F00", "v"),
    "torch-sparse": Look("#56B4E9", "P"),
    "fbgemm": Look("#000000", "X"),
}

STYLE: Any = {
    "font.size": 10,
    "axes.titlesize": 11,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.alpha": 0.25,
    "grid.linewidth": 0.6,
    "lines.linewidth": 1.8,
    "lines.markersize": 5,
    "svg.fonttype": "none",
    "svg.hashsalt": "sparsetrain",
}


def label_of(arm: str) -> str:
    """The name of an arm in a picture."""
    return (ARMS[arm] if arm in ARMS else PEERS[arm]).label


def curve(axes: Any, arm: str, xs: Sequence[float], ys: Sequence[float]) -> None:
    """Draw a curve with its name at the right end."""
    look = LOOKS[arm]
    axes.plot(xs, ys, color=look.color, marker=look.marker, zorder=3)
    note_end(axes, label_of(arm), xs[-1], ys[-1], look.color)


def band(axes: Any, arm: str, xs: Sequence[float], points: Sequence[Measurement]) -> None:
    """Shade the range from p10 to p90."""
    low, high = [p.p10_us for p in points], [p.p90_us for p in points]
    axes.fill_between(xs, low, high, color=LOOKS[arm].color, alpha=0.2, linewidth=0, zorder=2)


def note_end(axes: Any, text: str, x: float, y: float, color: str) -> None:
    """Write beside the end of a curve; `spread_ends` parts texts that would overlap."""
    note = axes.annotate(
        text,
        (x, y),
        xytext=(7, 0),
        textcoords="offset points",
        color=color,
        va="center",
        annotation_clip=False,
    )
    note.set_gid("end")


def spread_ends(figure: Any, axes: Any) -> None:
    """Move the names at the ends of curves apart, as little as it takes."""
    figure.draw_without_rendering()
    notes = [note for note in axes.texts if note.get_gid() == "end"]
    notes.sort(key=lambda note: axes.transData.transform(note.xy)[1])
    heights = [axes.transData.transform(note.xy)[1] for note in notes]
    gap = max((note.get_window_extent().height for note in notes), default=0.0)
    for note, old, new in zip(notes, heights, apart(heights, gap), strict=True):
        note.xyann = (note.xyann[0], (new - old) * 72 / figure.dpi)


def apart(heights: Sequence[float], gap: float) -> list[float]:
    """Rising numbers with at least `gap` between them, by the least sum of squared moves.

    Less ``n * gap``, they only have to not fall: neighbours that would are given their mean.
    """
    pools: list[tuple[float, int]] = []
    for n, height in enumerate(heights):
        mean, count = height - n * gap, 1
        while pools and pools[-1][0] > mean:
            other, others = pools.pop()
            mean, count = (mean * count + other * others) / (count + others), count + others
        pools.append((mean, count))
    flat = [mean for mean, count in pools for _ in range(count)]
    return [mean + n * gap for n, mean in enumerate(flat)]


def by_arm(points: Sequence[Measurement]) -> dict[str, list[Measurement]]:
    """The measurements of each arm, in the order of `LOOKS`."""
    found = {arm: [p for p in points if p.arm == arm] for arm in LOOKS}
    return {arm: some for arm, some in found.items() if some}
