# SPDX-License-Identifier: Apache-2.0
"""`sparsetrain plot`: loss, AUC and speed of a run.

Matplotlib (extra `plot`) is needed for plots only, and draws without a screen.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from sparsetrain.cli.options import AsJson
from sparsetrain.cli.output import emit
from sparsetrain.cli.output_files import replace_file, require_writable
from sparsetrain.errors import CheckpointError, ConfigError

_SUFFIXES = (".png", ".svg", ".pdf")
_Curve = tuple[str, str, str]  # split, field of the log, what it is called
# Score of a validation -> its panel, and whether the loss of training belongs there.
_SCORES = {"logloss": ("logloss", True), "rmse": ("RMSE", False), "auc": ("AUC", False)}


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
