# SPDX-License-Identifier: Apache-2.0
"""`sparsetrain plot`: losses, scores and speed of one or more runs.

Matplotlib (extra `plot`) is needed for plots only, and draws without a screen.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from sparsetrain.cli.curves import SPEED, Curve, panels_of
from sparsetrain.cli.options import AsJson
from sparsetrain.cli.output import emit
from sparsetrain.cli.output_files import replace_file, require_writable
from sparsetrain.errors import CheckpointError, ConfigError

_SUFFIXES = (".png", ".svg", ".pdf")
_STYLES: dict[str, dict[str, Any]] = {
    "training": {"linewidth": 1, "alpha": 0.6},
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
    """Draw losses, scores and speed of one or more runs."""
    import sparsetrain as st

    out = out or runs[0] / "plot.png"
    check_plot("--out", out)
    logs = [st.Run(run).log() for run in runs]
    for run, lines in zip(runs, logs, strict=True):
        if not lines:
            raise CheckpointError(f"{run} holds no log: it is not a run, or nothing was logged yet")
    named = zip(names_of(runs), map(panels_of, logs), strict=True)
    _draw(dict(named), out)
    count = sum(map(len, logs))
    emit({"out": str(out), "lines": count}, f"{count:,} measurements in {out}", as_json)


def names_of(runs: Sequence[Path]) -> list[str]:
    """Return short names of runs: those of their folders, or their paths if two are alike."""
    names = [run.absolute().name for run in runs]
    return names if len({*names}) == len(names) else [str(run) for run in runs]


def _draw(runs: Mapping[str, Mapping[str, Sequence[Curve]]], out: Path) -> None:
    from matplotlib.figure import Figure

    titles = list(dict.fromkeys(title for panels in runs.values() for title in panels))
    titles.sort(key=SPEED.__eq__)  # the last one
    figure = Figure(figsize=(7, 2 + 2 * len(titles)), layout="constrained")
    places = figure.subplots(len(titles), sharex=True, squeeze=False)[:, 0]
    for axes, title in zip(places, titles, strict=True):
        for number, (run, panels) in enumerate(runs.items()):
            for place, curve in enumerate(panels.get(title, ())):
                style = {
                    "label": f"{run}: {curve.label}" if len(runs) > 1 else curve.label,
                    "color": f"C{number if len(runs) > 1 else place}",
                    **_STYLES[curve.kind],
                }
                axes.plot(*zip(*curve.points, strict=True), **style)
        axes.set_ylabel(title)
        axes.grid(alpha=0.3)
        if len(axes.lines) > 1:
            axes.legend(frameon=False)
    if SPEED in titles:
        axes.set_ylim(bottom=0)
    axes.set_xlabel("step")
    figure.suptitle(", ".join(runs))
    write_plot(figure, out)


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
