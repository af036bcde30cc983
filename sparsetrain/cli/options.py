# SPDX-License-Identifier: Apache-2.0
"""Options that commands share, and how options become settings."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from sparsetrain.cli.settings import Settings, resolve_settings
from sparsetrain.cli.settings.sources import Entry

AsJson = Annotated[bool, typer.Option("--json", help="End stdout with one JSON object.")]
Config = Annotated[
    Path | None, typer.Option("--config", metavar="FILE", help="Settings in TOML or YAML.")
]
Overrides = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="SECTION.KEY=VALUE",
        help="One setting, of those that `sparsetrain settings` lists; wins over all others. "
        "No VALUE: its default.",
    ),
]
BatchSize = Annotated[
    int, typer.Option("--batch-size", min=1, help="Rows per batch; changes speed, not results.")
]
WarnUnseen = Annotated[
    float | None, typer.Option("--warn-unseen", help="Share of unseen categories worth a warning.")
]
Which = Annotated[
    str,
    typer.Option(
        "--which",
        help="Of a run's checkpoints: latest, best on --valid, or auto: best if it was trained "
        "with --early-stopping, else latest.",
    ),
]
Precision = Annotated[
    str | None,
    typer.Option("--precision", help="Of products, if not that of the training: float32, bf16."),
]
Model = Annotated[Path, typer.Argument(metavar="MODEL", help="Folder that `train --out` wrote.")]

# Option -> the setting that it is short for.
_SETTINGS = {
    "--optimizer": "optimizer.name",
    "--lr": "optimizer.lr",
    "--batch-size": "train.batch_size",
    "--epochs": "train.epochs",
    "--seed": "train.seed",
    "--target": "train.target",
    "--precision": "train.precision",
    "--table-dtype": "model.table_dtype",
    "--loss-scale": "train.loss_scale",
    "--min-count": "data.min_count",
    "--checkpoint-every": "train.checkpoint_every",
    "--validate-every": "train.validate_every",
    "--early-stopping": "train.patience",
    "--check-numerics": "train.check_numerics",
    "--max-rows": "data.max_rows",
    "--schema": "data.schema_file",
    "--weights": "data.weights",
    "--warn-unseen": "data.warn_unseen",
    "--valid-share": "data.valid_share",
    "--valid-from": "data.valid_from",
    "--time-column": "data.time_column",
}


def default_of(option: str) -> Any:
    """Return what holds where an option is not given."""
    section, key = _SETTINGS[option].split(".")
    return getattr(getattr(Settings(), section), key)


def settings_from(
    options: Mapping[str, Any],
    config: Path | None,
    overrides: list[str] | None,
    base: Sequence[Entry] = (),
) -> Settings:
    """Resolve the settings of a command; an option that was not given is None and counts not."""
    entries = [
        Entry(_SETTINGS[option], value, option)
        for option, value in options.items()
        if value is not None
    ]
    return resolve_settings(config, os.environ, entries, overrides or (), base)
