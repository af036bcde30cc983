# SPDX-License-Identifier: Apache-2.0
"""`sparsetrain plot`: losses, scores and speed of one or more runs.

Only plots need Matplotlib (extra `plot`), which draws without a screen.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from sparsetrain.cli.curves import charts_of
from sparsetrain.cli.options import AsJson
from sparsetrain.cli.output import emit
from sparsetrain.cli.output_files import replace_file, require_writable
from sparsetrain.errors import CheckpointError, ConfigError
from sparsetrain.system.chart import Chart

_SUFFIXES = (".png", ".svg", ".pdf")
_INK = ("text.color", "axes.edgecolor", "axes.labelcolor", "xtick.color", "ytick.color")
# No background, and gray text that can be read on light and on dark pages.
_COLORS: dict[Any, str] = {
    **dict.fromkeys(_INK, "#808080"),
    "figure.facecolor": "none",
    "axes.facecolor": "none",
}
_STYLES: dict[str, dict[str, Any]] = {
    "training": {"linewidth": 1, "alpha": 0.8},
    "validation": {"marker": "o", "markersize": 3},
    "constant": {"linestyle": "--", "color": "grey"},
}


def plot(
    runs: Annotated[
        list[Path], typer.Argument(metavar="RUN...", help="Folders that `train --out` wrote.")
    ],
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Plot to write, .png, .svg or .pdf; plot.png in the first RUN."
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Plot losses, scores and speed of one or more runs."""
    import sparsetrain as st

    out = out or runs[0] / "plot.png"
    check_plot("--out", out)
    logs = [st.Run(run).log() for run in runs]
    for run, log in zip(runs, logs, strict=True):
        if not charts_of([("", log)]):
            raise CheckpointError(f"{run} has no log: it is not a run, or nothing was logged yet")
    names = names_of(runs)
    draw(charts_of([*zip(names, logs, strict=True)]), names, out)
    count = sum(map(len, logs))
    emit({"out": str(out), "lines": count}, f"{count:,} measurements in {out}", as_json)


def names_of(runs: Sequence[Path]) -> list[str]:
    """Return short names of runs: their folders' names, or their paths if two are equal."""
    names = [run.absolute().name for run in runs]
    return names if len({*names}) == len(names) else [str(run) for run in runs]


def draw(charts: Sequence[Chart], names: Sequence[str], out: Path) -> None:
    """Draw charts below each other; a single name becomes the title, several label the colors."""
    from matplotlib import rc_context

    with rc_context(_COLORS):
        write_plot(_figure(charts, names), out)


def _figure(charts: Sequence[Chart], names: Sequence[str]) -> Any:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 2 + 2 * len(charts)), layout="constrained")
    places = figure.subplots(len(charts), sharex=True, squeeze=False)[:, 0]
    for axes, chart in zip(places, charts, strict=True):
        for label, color, kind, points in chart.series:
            style = {"label": _literal(label), "color": f"C{color}", **_STYLES[kind]}
            axes.plot(*zip(*points, strict=True), **style)
        axes.set_ylabel(chart.title)
        axes.grid(alpha=0.3)
        if len(names) == 1 and len(chart.series) > 1:
            axes.legend(frameon=False)
        if chart.from_zero:
            axes.set_ylim(bottom=0)
        if chart.is_log:
            axes.set(xscale="log", yscale="log")
    axes.set_xlabel(chart.x_name)
    if len(names) > 1:
        lines = [
            axes.plot([], [], label=_literal(n), color=f"C{i}")[0] for i, n in enumerate(names)
        ]
        figure.legend(handles=lines, loc="outside upper center", ncols=4, frameon=False)
    else:
        figure.suptitle(_literal(*names))
    return figure


def _literal(text: str) -> str:
    """Return text that Matplotlib can draw without reading it as a formula."""
    return text.encode(errors="backslashreplace").decode().replace("$", r"\$")


def check_plot(option: str, path: Path) -> None:
    """Raise `ConfigError` unless a plot could be drawn at `path`, the value of `option`."""
    if path.suffix.lower() not in _SUFFIXES:
        raise ConfigError(f"{option} {path}: unsupported file type: use {', '.join(_SUFFIXES)}")
    require_writable(path)
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        raise ConfigError(
            f"plots ({option}) need Matplotlib: pip install 'sparsetrain[plot]'"
        ) from None


def write_plot(figure: Any, path: Path) -> None:
    """Write a figure; the old file stays until the new one is complete."""
    with replace_file(path) as draft:
        figure.savefig(draft, dpi=120)
