# SPDX-License-Identifier: Apache-2.0
"""`sparsetrain train`: from the user's files to a saved and scored model."""

from pathlib import Path
from typing import Annotated, Any

import typer

from sparsetrain.cli.options import AsJson, SettingOptions, with_settings
from sparsetrain.cli.output import emit, format_score, format_scores, format_table, note, notes_once
from sparsetrain.cli.resume import find_run, resume_run, start_from_run
from sparsetrain.cli.run_training import run_training
from sparsetrain.cli.seeds import describe_seeds, run_seeds
from sparsetrain.cli.stop import StopSignals
from sparsetrain.cli.train_files import Files
from sparsetrain.cli.windows import describe_windows, run_windows
from sparsetrain.errors import ConfigError
from sparsetrain.training.progress import format_count, format_seconds

_File = Annotated[Path | None, typer.Option(metavar="FILE", help="File or folder to score on.")]


@with_settings(exclude="--warn-unseen")
def train(
    settings: SettingOptions,
    train: Annotated[
        list[Path] | None, typer.Argument(metavar="TRAIN", help="Files or folders to train on.")
    ] = None,
    valid: _File = None,
    test: _File = None,
    out: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="Save the run in this new folder.")
    ] = None,
    start_from: Annotated[
        Path | None,
        typer.Option(
            metavar="RUN", help="Start from that run's weights; values new in TRAIN get rows."
        ),
    ] = None,
    resume: Annotated[
        str | None,
        typer.Option(
            metavar="RUN|auto", help="Resume a run; auto: the run in --out, if there is one."
        ),
    ] = None,
    allow_changed: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help="Allow a change from the resumed run: data, validation or a setting.",
        ),
    ] = None,
    seeds: Annotated[
        int,
        typer.Option(min=1, help="Train with this number of seeds; report means and deviations."),
    ] = 1,
    profile: Annotated[
        bool, typer.Option("--profile", help="Report the time of a step by kernels.")
    ] = False,
    verbose: Annotated[
        bool, typer.Option("--verbose", "-v", help="Report the update path of each table.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Train a model on logs of clicks, ratings or choices, and score it."""
    if allow_changed and resume is None:
        raise ConfigError("--allow-changed needs --resume")
    if start_from is not None and resume not in (None, "auto"):
        raise ConfigError("--start-from and --resume exclude each other: remove one")
    if seeds > 1 and (resume or start_from):
        raise ConfigError("--seeds makes new runs: remove --resume and --start-from")
    folder = find_run(resume, out)
    earlier = None
    files = Files(train or (), valid, test, folder or out)
    if folder is not None:
        earlier = resume_run(folder, settings, allow_changed or ())
        files = files.with_defaults(earlier.files)
    elif start_from is not None:
        earlier = start_from_run(start_from, settings)
    chosen = earlier.settings if earlier else settings.resolve()
    if not files.train:
        raise ConfigError("Missing argument 'TRAIN'. (see sparsetrain train --help)")
    with StopSignals() as stop:
        if chosen.data.window is not None:
            if earlier or seeds > 1 or profile:
                raise ConfigError(
                    "--window: remove --start-from, --seeds and --profile; use --resume auto"
                )
            windows = run_windows(chosen, files, stop, resume is not None)
            emit(windows, describe_windows(windows), as_json)
            stop.raise_if_requested()
            return
        if seeds > 1:
            with notes_once():
                several = run_seeds(chosen, files, stop, seeds)
            emit(several, describe_seeds(several), as_json)
            return
        result = run_training(chosen, files, stop, earlier, profile=profile, verbose=verbose)
        emit(result, _describe(result), as_json)
        if result["stopped"] and result["out"]:
            note(f"Next: sparsetrain train --resume {result['out']}")
        stop.raise_if_requested()


def _describe(result: dict[str, Any]) -> str:
    import sparsetrain as st

    lines = [describe_work(result)]
    if len(result["epochs"]) > 1:
        lines += ["", _describe_epochs(result["epochs"])]
    if "profile" in result:
        profile = result["profile"]
        shown = st.StepProfile.from_dict(profile) if profile else "too few steps to profile"
        lines += ["", str(shown)]
    if result["scored"] == "best":
        reason = "stopped early" if result["stopped_early"] else "early stopping"
        best = f"weights and scores are from step {result['best']['step']:,}, the best"
        lines += ["", f"{reason}: {best}"]
    scores = {name: result[name] for name in ("valid", "test")}
    if any(scores.values()):
        lines += ["", format_scores(scores)]
    return "\n".join(lines)


def describe_work(result: dict[str, Any]) -> str:
    """Return the number of rows trained on, and the speed."""
    if not result["rows"] and not result["stopped"]:
        hint = "it stopped early" if result["stopped_early"] else "raise --epochs to continue"
        return f"nothing to train: the run had ended; {hint}"
    rows, took = format_count(result["rows"], "row"), format_seconds(result["seconds"])
    return f"trained on {rows} in {took}, {result['rows_per_s']:,.0f} rows/s"


def _describe_epochs(epochs: list[dict[str, Any]]) -> str:
    """Return the losses and scores of the epochs, which show where overfitting begins."""
    named: dict[str, Any] = next((epoch["valid"] for epoch in epochs if epoch.get("valid")), {})
    shown = [name for name in named if name.rpartition(".")[2] in ("auc", "logloss", "rmse")]
    titles = [f"valid {name.replace('auc', 'AUC').replace('rmse', 'RMSE')}" for name in shown]
    rows = [["epoch", "training loss", *titles]]
    for number, epoch in enumerate(epochs, 1):
        valid = epoch.get("valid") or {}
        cells = (epoch["loss"], *(valid.get(name) for name in shown))
        rows.append([str(number), *(format_score(cell) for cell in cells)])
    return format_table(rows)
