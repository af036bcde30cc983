# SPDX-License-Identifier: Apache-2.0
"""Settings of a training run: declared in `schema` and `optimizer`, resolved in `resolve`.

Precedence: defaults < a TOML or YAML file < environment < command options < `--set`. An unknown key
is an error that names its source and suggests the nearest known key.
"""

from sparsetrain.cli.settings.resolve import resolve_settings as resolve_settings
from sparsetrain.cli.settings.schema import DataSettings as DataSettings
from sparsetrain.cli.settings.schema import ModelSettings as ModelSettings
from sparsetrain.cli.settings.schema import OptimizerSettings as OptimizerSettings
from sparsetrain.cli.settings.schema import Settings as Settings
from sparsetrain.cli.settings.schema import TrainSettings as TrainSettings
from sparsetrain.cli.settings.schema import settings_of as settings_of
