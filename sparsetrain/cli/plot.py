# SPDX-License-Identifier: Apache-2.0
"""`sparsetrain plot`: loss, AUC and speed of a run, from its log, as one picture."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from sparsetrain.cli.options import AsJson
from sparsetrain.cli.output import emit
from sparsetrain.cli.picture import check_picture, write_picture
from sparsetrain.errors import CheckpointError

# Panel -> the curves in it: (split, field of the log, label).
_PANELS = {
    "logloss": (
        ("train", "loss", "training"),
        ("valid", "logloss", "validation"),
        ("valid", "constant_logloss", "a constant"),
    ),
    "AUC": (("valid", "auc", "validation"),),
    "rows per second": (("train", "rows_per_s", "training"),),
}


def plot(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="Folder that `train --out` wrote.")],
    out: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Where to draw: .png, .svg or .pdf; RUN/plot.png."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Draw loss, AUC and speed of a run."""
    import sparsetrain as st

    out = out or run / "plot.png"
    check_picture("--out", out)
    lines = st.Run(run).log()
    if not lines:
        raise CheckpointError(f"{run} holds no log: it is no run, or nothing was measured yet")
    _draw(lines, run.name, out)
    emit({"out": str(out), "lines": len(lines)}, f"{len(lines):,} measurements in {out}", as_json)


def _draw(lines: Sequence[dict[str, Any]], title: str, out: Path) -> None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 8), layout="constrained")
    for axes, (name, curves) in zip(
        figure.subplots(len(_PANELS), sharex=True), _PANELS.items(), strict=True
    ):
        drawn = [_curve(axes, lines, *curve) for curve in curves]
        axes.set_ylabel(name)
        axes.grid(alpha=0.3)
        if sum(drawn) > 1:
            axes.legend(frameon=False)
        if not any(drawn):
            axes.text(0.5, 0.5, "not measured", ha="center", transform=axes.transAxes)
    axes.set_ylim(bottom=0)  # the last panel is a speed
    axes.set_xlabel("step")
    figure.suptitle(title)
    write_picture(figure, out)


def _curve(axes: Any, lines: Sequence[dict[str, Any]], split: str, field: str, label: str) -> bool:
    """Draw one curve; a measurement that is missing or not a number leaves a gap."""
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
