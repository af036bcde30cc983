# SPDX-License-Identifier: Apache-2.0
"""Settings of a training run: what there is (`schema`), where it comes from (`sources`), who wins.

Defaults < a TOML or YAML file < environment < command options < `--set`. Every key is checked; an
unknown one is an error that names where it was written and suggests the nearest known one.
"""

from sparsetrain.cli.settings.resolve import resolve_settings as resolve_settings
from sparsetrain.cli.settings.schema import DataSettings as DataSettings
from sparsetrain.cli.settings.schema import ModelSettings as ModelSettings
from sparsetrain.cli.settings.schema import OptimizerSettings as OptimizerSettings
from sparsetrain.cli.settings.schema import Settings as Settings
from sparsetrain.cli.settings.schema import TrainSettings as TrainSettings
