# SPDX-License-Identifier: Apache-2.0
"""`sparsetrain train`: from the user's files to a saved and scored model."""

from typing import Any

from sparsetrain.cli import train_options as given
from sparsetrain.cli.files import Files
from sparsetrain.cli.options import AsJson, Config, Overrides, settings_from
from sparsetrain.cli.output import emit, format_score, format_scores, format_table
from sparsetrain.cli.resuming import find_run, resumed
from sparsetrain.cli.settings.sources import parse_text
from sparsetrain.cli.starting import started
from sparsetrain.cli.stop import StopSignals
from sparsetrain.cli.training import run_training
from sparsetrain.errors import ConfigError
from sparsetrain.training.progress import format_count, format_seconds


def train(
    train: given.Train = None,
    valid: given.File = None,
    test: given.File = None,
    valid_share: given.ValidShare = None,
    valid_from: given.ValidFrom = None,
    time_column: given.TimeColumn = None,
    out: given.Out = None,
    optimizer: given.Optimizer = None,
    lr: given.Lr = None,
    batch_size: given.BatchSize = None,
    epochs: given.Epochs = None,
    seed: given.Seed = None,
    target: given.Target = None,
    precision: given.Precision = None,
    table_dtype: given.TableDtype = None,
    loss_scale: given.LossScale = None,
    min_count: given.MinCount = None,
    schema: given.Schema = None,
    weights: given.Weights = None,
    start_from: given.StartFrom = None,
    resume: given.Resume = None,
    allow_changed: given.AllowChanged = None,
    checkpoint_every: given.CheckpointEvery = None,
    validate_every: given.ValidateEvery = None,
    early_stopping: given.EarlyStopping = None,
    check_numerics: given.CheckNumerics = None,
    profile: given.Profile = False,
    verbose: given.Verbose = False,
    overrides: Overrides = None,
    config: Config = None,
    as_json: AsJson = False,
) -> None:
    """Train a DLRM on click logs and score it."""
    options = {
        "--optimizer": optimizer,
        "--lr": lr,
        "--batch-size": batch_size,
        "--epochs": epochs,
        "--seed": seed,
        "--target": target,
        "--precision": precision,
        "--table-dtype": table_dtype,
        "--loss-scale": None if loss_scale is None else parse_text(loss_scale),
        "--min-count": min_count,
        "--schema": schema,
        "--weights": weights,
        "--valid-share": valid_share,
        "--valid-from": None if valid_from is None else parse_text(valid_from),
        "--time-column": time_column,
        "--checkpoint-every": checkpoint_every,
        "--validate-every": validate_every,
        "--early-stopping": early_stopping,
        "--check-numerics": check_numerics,
    }
    if allow_changed and resume is None:
        raise ConfigError("--allow-changed goes with --resume")
    if start_from is not None and resume not in (None, "auto"):
        raise ConfigError("--start-from begins a run and --resume goes on with one: drop one")
    run = find_run(resume, out)
    begun = None if run is None else resumed(run, options, config, overrides, allow_changed or ())
    start = None
    if start_from is not None and begun is None:
        start = started(start_from, options, config, overrides)
    of_run = begun or start
    settings = of_run.settings if of_run else settings_from(options, config, overrides)
    files = Files(train or (), valid, test, run or out).or_else(begun.files if begun else {})
    if not files.train:
        raise ConfigError("Missing argument 'TRAIN'. (see sparsetrain train --help)")
    with StopSignals() as stop:
        result = run_training(settings, files, stop, begun, start, profile=profile, verbose=verbose)
        emit(result, _describe(result), as_json)
        stop.raise_if_requested()


def _describe(result: dict[str, Any]) -> str:
    lines = [_describe_work(result)]
    if len(result["epochs"]) > 1:
        lines += ["", _describe_epochs(result["epochs"])]
    if "profile" in result:
        lines += ["", _describe_profile(result["profile"])]
    if result["scored"] == "best":
        why = "stopped early" if result["stopped_early"] else "early stopping"
        best = f"weights and scores are those of step {result['best']['step']:,}, the best"
        lines += ["", f"{why}: {best}"]
    scores = {name: result[name] for name in ("valid", "test")}
    if any(scores.values()):
        lines += ["", format_scores(scores)]
    return "\n".join(lines)


def _describe_work(result: dict[str, Any]) -> str:
    if not result["rows"] and not result["stopped"]:
        why = "it stopped early" if result["stopped_early"] else "more --epochs go on with it"
        return f"nothing was left to train: the run had ended; {why}"
    rows, took = format_count(result["rows"], "row"), format_seconds(result["seconds"])
    return f"trained on {rows} in {took}, {result['rows_per_s']:,.0f} rows/s"


def _describe_profile(profile: dict[str, Any] | None) -> str:
    import sparsetrain as st

    if profile is None:
        return "too few steps to profile"
    return str(st.StepProfile.from_dict(profile))


def _describe_epochs(epochs: list[dict[str, Any]]) -> str:
    """Show where training helped and where it began to overfit."""
    rows = [["epoch", "training loss", "valid AUC", "valid logloss"]]
    for number, epoch in enumerate(epochs, 1):
        valid = epoch.get("valid") or {}
        cells = (epoch["loss"], valid.get("auc"), valid.get("logloss"))
        rows.append([str(number), *(format_score(cell) for cell in cells)])
    return format_table(rows)
