# SPDX-License-Identifier: Apache-2.0
"""`sparsetrain train`: from the user's files to a saved and scored model."""

from pathlib import Path
from typing import Annotated, Any

import typer

from sparsetrain.cli.options import AsJson, Config, Overrides, settings_from
from sparsetrain.cli.output import emit, format_score, format_scores, format_table
from sparsetrain.cli.resuming import find_run, resumed
from sparsetrain.cli.stop import StopSignals
from sparsetrain.cli.training import Files, run_training
from sparsetrain.errors import ConfigError
from sparsetrain.progress import format_seconds
from sparsetrain.settings.sources import parse_text

_File = Annotated[Path | None, typer.Option(metavar="FILE", help="File or folder to score on.")]


def train(
    train: Annotated[
        list[Path] | None, typer.Argument(metavar="TRAIN", help="Files or folders to train on.")
    ] = None,
    valid: _File = None,
    test: _File = None,
    valid_share: Annotated[
        float | None, typer.Option("--valid-share", help="Hold out a share of TRAIN, by chance.")
    ] = None,
    valid_from: Annotated[
        str | None,
        typer.Option("--valid-from", metavar="TIME", help="Hold out TRAIN's rows from then on."),
    ] = None,
    time_column: Annotated[
        str | None, typer.Option("--time-column", help="What --valid-from is about.")
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(metavar="FOLDER", help="Save the run in this new folder."),
    ] = None,
    optimizer: Annotated[
        str | None, typer.Option("--optimizer", help="sgd, adagrad, adam, ...; see the docs.")
    ] = None,
    lr: Annotated[float | None, typer.Option("--lr", help="Learning rate.")] = None,
    batch_size: Annotated[int | None, typer.Option("--batch-size", help="Rows per step.")] = None,
    epochs: Annotated[int | None, typer.Option("--epochs", help="Passes over TRAIN.")] = None,
    seed: Annotated[int | None, typer.Option("--seed", help="Of weights and row order.")] = None,
    target: Annotated[str | None, typer.Option("--target", help="auto, cpu or llvm.")] = None,
    min_count: Annotated[
        int | None, typer.Option("--min-count", help="Rarer categories share one row.")
    ] = None,
    schema: Annotated[
        str | None, typer.Option("--schema", metavar="FILE", help="Names columns not Criteo's.")
    ] = None,
    resume: Annotated[
        str | None,
        typer.Option(metavar="RUN|auto", help="Go on with a run; auto: with --out, if it is one."),
    ] = None,
    allow_changed: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="What may differ from the resumed run: data, a setting."),
    ] = None,
    checkpoint_every: Annotated[
        int | None, typer.Option("--checkpoint-every", help="Steps; also after each epoch.")
    ] = None,
    validate_every: Annotated[
        int | None, typer.Option("--validate-every", help="Steps; also after each epoch.")
    ] = None,
    early_stopping: Annotated[
        int | None,
        typer.Option("--early-stopping", help="End after so many validations without progress."),
    ] = None,
    check_numerics: Annotated[
        bool | None,
        typer.Option("--check-numerics", help="Find the first value that is not finite."),
    ] = None,
    overrides: Overrides = None,
    config: Config = None,
    as_json: AsJson = False,
) -> None:
    """Train a DLRM on Criteo-format parquet and score it."""
    options = {
        "--optimizer": optimizer,
        "--lr": lr,
        "--batch-size": batch_size,
        "--epochs": epochs,
        "--seed": seed,
        "--target": target,
        "--min-count": min_count,
        "--schema": schema,
        "--valid-share": valid_share,
        "--valid-from": None if valid_from is None else parse_text(valid_from),
        "--time-column": time_column,
        "--checkpoint-every": checkpoint_every,
        "--validate-every": validate_every,
        "--early-stopping": early_stopping,
        "--check-numerics": check_numerics,
    }
    run = find_run(resume, out)
    given = Files(train or (), valid, test, run or out)
    if run is None:
        begun, settings, files = None, settings_from(options, config, overrides), given
    else:
        begun = resumed(run, options, config, overrides, allow_changed or ())
        settings, files = begun.settings, given.or_else(begun.files)
    if not files.train:
        raise ConfigError("Missing argument 'TRAIN'. (see sparsetrain train --help)")
    if allow_changed and resume is None:
        raise ConfigError("--allow-changed goes with --resume")
    with StopSignals() as stop:
        result = run_training(settings, files, stop, begun)
        emit(result, _describe(result), as_json)
        stop.raise_if_requested()


def _describe(result: dict[str, Any]) -> str:
    took = format_seconds(result["seconds"])
    lines = [f"trained on {result['rows']:,} rows in {took}, {result['rows_per_s']:,.0f} rows/s"]
    if len(result["epochs"]) > 1:
        lines += ["", _describe_epochs(result["epochs"])]
    if result["scored"] == "best":
        lines += ["", f"stopped early; the best model is that of step {result['best']['step']:,}"]
    scores = {name: result[name] for name in ("valid", "test")}
    if any(scores.values()):
        lines += ["", format_scores(scores)]
    return "\n".join(lines)


def _describe_epochs(epochs: list[dict[str, Any]]) -> str:
    """Show where training helped and where it began to overfit."""
    rows = [["epoch", "training loss", "valid AUC", "valid logloss"]]
    for number, epoch in enumerate(epochs, 1):
        valid = epoch.get("valid") or {}
        cells = (epoch["loss"], valid.get("auc"), valid.get("logloss"))
        rows.append([str(number), *(format_score(cell) for cell in cells)])
    return format_table(rows)
