# SPDX-License-Identifier: Apache-2.0
"""`sparsetrain settings`: all that `--set` and `--config` know, with defaults or a run's values."""

from pathlib import Path
from typing import Annotated

import typer

from sparsetrain.cli.options import AsJson, Config, Overrides, settings_from
from sparsetrain.cli.output import emit
from sparsetrain.cli.resuming import stored_in
from sparsetrain.cli.settings.listing import as_toml


def settings(
    run: Annotated[
        Path | None, typer.Argument(metavar="RUN", help="A run whose settings to show.")
    ] = None,
    overrides: Overrides = None,
    config: Config = None,
    as_json: AsJson = False,
) -> None:
    """List every setting, as a file for --config."""
    base = () if run is None else stored_in(run).entries
    found = settings_from({}, config, overrides, base)
    emit(found.to_dict(), as_toml(found).rstrip(), as_json)
