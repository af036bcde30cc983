# SPDX-License-Identifier: Apache-2.0
"""Plot of a dataset: clicks along the file, missing values, frequencies of ids."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from sparsetrain.cli.plot import write_plot

if TYPE_CHECKING:
    import sparsetrain as st

# Colours of the named frequency curves; Matplotlib's C7, a grey, is left to the others.
_COLORS = ("C0", "C1", "C2", "C3", "C4", "C5", "C6", "C8", "C9")


def draw_profile(profile: "st.data.Profile", path: Path) -> None:
    """Plot a profile in the format of the suffix of `path`."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 8), layout="constrained")
    grid = figure.add_gridspec(2, 2, height_ratios=(1, 1.4))
    figure.suptitle(f"{Path(profile.name).name}: {profile.rows:,} rows")
    _clicks(figure.add_subplot(grid[0, 0]), profile)
    _missing(figure.add_subplot(grid[0, 1]), profile)
    _frequencies(figure.add_subplot(grid[1, :]), profile)
    write_plot(figure, path)


def _clicks(axes: Any, profile: "st.data.Profile") -> None:
    axes.set(title="clicks along the file", xlabel="row", ylabel="share of clicks")
    if not profile.label_rates:
        axes.text(0.5, 0.5, "no label", ha="center", transform=axes.transAxes)
        return
    rows, rates = zip(*profile.label_rates, strict=True)
    axes.step([*rows, profile.rows], [*rates, rates[-1]], where="post")
    axes.set_ylim(0, 1.1 * max(max(rates), 0.01))
    axes.grid(alpha=0.3)


def _missing(axes: Any, profile: "st.data.Profile") -> None:
    shares = {
        c.column: c.missing / max(profile.rows, 1) for c in profile.dense if c.missing is not None
    }
    shares |= {c.column: c.missing / max(c.ids, 1) for c in profile.categories}
    axes.set(title="missing values", ylabel="share", ylim=(0, 1))
    colors = ["C1"] * (len(shares) - len(profile.categories)) + ["C0"] * len(profile.categories)
    axes.bar(range(len(shares)), list(shares.values()), color=colors)
    axes.set_xticks(range(len(shares)), list(shares), rotation=90, fontsize=7)
    axes.grid(axis="y", alpha=0.3)


def _frequencies(axes: Any, profile: "st.data.Profile") -> None:
    """Draw each column's counts by rank; columns with the most values are named."""
    axes.set(title="frequencies of ids", xlabel="rank of the id", ylabel="occurrences")
    most = sorted(profile.categories, key=lambda c: -c.distinct)
    named = {c.column: color for c, color in zip(most, _COLORS, strict=False)}
    for column in profile.categories:
        if not column.curve:
            continue
        ranks, counts = zip(*column.curve, strict=True)
        style: dict[str, Any] = {"color": "0.7", "linewidth": 0.8, "zorder": 1}
        if column.column in named:
            label = f"{column.column} ({column.distinct:,})"
            style = {"color": named[column.column], "label": label, "zorder": 2}
        axes.plot(ranks, counts, marker="." if len(ranks) == 1 else None, **style)
    axes.set(xscale="log", yscale="log")
    if named:
        axes.legend(title="column (distinct ids)", fontsize=8, ncols=2)
    axes.grid(alpha=0.3)
