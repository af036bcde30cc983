# SPDX-License-Identifier: Apache-2.0
"""`sparsetrain settings`: all settings, with defaults or the values of a run."""

from pathlib import Path
from typing import Annotated

import typer

from sparsetrain.cli.options import AsJson, SettingOptions, with_settings
from sparsetrain.cli.output import emit
from sparsetrain.cli.resume import read_run
from sparsetrain.cli.settings.listing import as_toml


@with_settings(own=False)
def settings(
    settings: SettingOptions,
    run: Annotated[
        Path | None, typer.Argument(metavar="RUN", help="Show the settings of this run.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """List every setting, as a file for --config."""
    resolved = settings.resolve(() if run is None else read_run(run).entries)
    emit(resolved.to_dict(), as_toml(resolved).rstrip(), as_json)
