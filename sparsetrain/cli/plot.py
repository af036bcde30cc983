# SPDX-License-Identifier: Apache-2.0
"""Plots: a run's loss, AUC and speed (`sparsetrain plot`), and a dataset's profile (`inspect`).

Matplotlib (extra `plot`) is needed for plots only, and draws without a screen.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sparsetrain.cli.options import AsJson
from sparsetrain.cli.output import emit
from sparsetrain.cli.output_files import replace_file, require_writable
from sparsetrain.errors import CheckpointError, ConfigError

if TYPE_CHECKING:
    import sparsetrain as st

_SUFFIXES = (".png", ".svg", ".pdf")
_Curve = tuple[str, str, str]  # split, field of the log, what it is called
# Score of a validation -> its panel, and whether the loss of training belongs there.
_SCORES = {"logloss": ("logloss", True), "rmse": ("RMSE", False), "auc": ("AUC", False)}
# Colours of the named frequency curves; Matplotlib's C7, a grey, is left to the others.
_COLORS = ("C0", "C1", "C2", "C3", "C4", "C5", "C6", "C8", "C9")


def plot(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="Folder that `train --out` wrote.")],
    out: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Plot to write, .png, .svg or .pdf; RUN/plot.png."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Draw loss, AUC and speed of a run."""
    import sparsetrain as st

    out = out or run / "plot.png"
    check_plot("--out", out)
    lines = st.Run(run).log()
    if not lines:
        raise CheckpointError(f"{run} holds no log: it is not a run, or nothing was logged yet")
    _draw(lines, run.name, out)
    emit({"out": str(out), "lines": len(lines)}, f"{len(lines):,} measurements in {out}", as_json)


def _panels(lines: Sequence[Mapping[str, Any]]) -> dict[str, list[_Curve]]:
    """Return panels with the curves in each, by the labels that were validated."""
    measured = dict.fromkeys(name for line in lines if line["split"] == "valid" for name in line)
    clicks = not any(name.rpartition(".")[2] == "rmse" or "." in name for name in measured)
    named = ("logloss", "constant_logloss", "auc") if clicks else tuple(measured)
    panels: dict[str, list[_Curve]] = {}
    if not clicks:
        panels["loss"] = [("train", "loss", "training"), ("valid", "loss", "validation")]
    for score, (title, with_training) in _SCORES.items():
        curves = [
            ("valid", name, _called(name, score))
            for name in named
            if name.rpartition(".")[2] in (score, f"constant_{score}")
        ]
        training = [("train", "loss", "training")] if clicks and with_training else []
        if curves:
            panels[title] = [*training, *curves]
    return {**panels, "rows per second": [("train", "rows_per_s", "training")]}


def _called(name: str, score: str) -> str:
    label, _, key = name.rpartition(".")
    what = "validation" if key == score else "a constant"
    return f"{label}, {what}" if label else what


def _draw(lines: Sequence[dict[str, Any]], title: str, out: Path) -> None:
    from matplotlib.figure import Figure

    panels = _panels(lines)
    figure = Figure(figsize=(7, 2 + 2 * len(panels)), layout="constrained")
    for axes, (name, curves) in zip(
        figure.subplots(len(panels), sharex=True), panels.items(), strict=True
    ):
        drawn = [_curve(axes, lines, *curve) for curve in curves]
        axes.set_ylabel(name)
        axes.grid(alpha=0.3)
        if sum(drawn) > 1:
            axes.legend(frameon=False)
        if not any(drawn):
            axes.text(0.5, 0.5, "not measured", ha="center", transform=axes.transAxes)
    axes.set_ylim(bottom=0)  # the last panel shows a speed
    axes.set_xlabel("step")
    figure.suptitle(title)
    write_plot(figure, out)


def _curve(axes: Any, lines: Sequence[dict[str, Any]], split: str, field: str, label: str) -> bool:
    """Draw one curve; missing values leave a gap."""
    points = [
        (line["step"], line[field])
        for line in lines
        if line.get("split") == split and line.get(field) is not None and "step" in line
    ]
    if points:
        few = {"marker": "o", "markersize": 3} if len(points) < 50 else {}
        dashed = {"linestyle": "--", "color": "grey"} if "constant" in field else {}
        axes.plot(*zip(*points, strict=True), label=label, **few, **dashed)
    return bool(points)


def check_plot(option: str, path: Path) -> None:
    """Raise `ConfigError` unless a plot could be drawn at `path`, the value of `option`."""
    if path.suffix.lower() not in _SUFFIXES:
        raise ConfigError(f"{option} {path}: a plot ends in {', '.join(_SUFFIXES)}")
    require_writable(path)
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        raise ConfigError(
            f"plots ({option}) need Matplotlib: pip install 'sparsetrain[plot]'"
        ) from None


def write_plot(figure: Any, path: Path) -> None:
    """Write a figure; the old file stays until all of it is written."""
    with replace_file(path) as draft:
        figure.savefig(draft, dpi=120)


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
