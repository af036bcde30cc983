# SPDX-License-Identifier: Apache-2.0
"""Checks of the arguments of `Trainer.fit` that are not numbers, before any data is read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from sparsetrain.errors import ConfigError
from sparsetrain.system.argument_checks import require_type
from sparsetrain.training.fit.plan import EarlyStopping, ReduceLROnPlateau
from sparsetrain.training.run import Run


def check_fit_arguments(
    validation: Any,
    stop: Any,
    on_epoch: Any,
    run: Any,
    validate_every: Any,
    early_stopping: Any,
    reduce_lr: Any,
) -> None:
    """Refuse arguments of another type, and to validate, or to stop by it, without rows.

    Raises
    ------
    ConfigError
        It says what to give.
    """
    if stop is not None and not callable(stop):
        raise ConfigError(f"stop is {stop!r:.60}; give a function without arguments")
    if on_epoch is not None and not callable(on_epoch):
        raise ConfigError(f"on_epoch is {on_epoch!r:.60}; give a function of a dict")
    require_type("run", run, (Run, str, Path), "a Run, or the path of its folder")
    fix = "an EarlyStopping, such as EarlyStopping(patience=3)"
    require_type("early_stopping", early_stopping, EarlyStopping, fix)
    fix = "a ReduceLROnPlateau, such as ReduceLROnPlateau(0.1)"
    require_type("reduce_lr", reduce_lr, ReduceLROnPlateau, fix)
    needing = {
        "validate_every": validate_every,
        "early_stopping": early_stopping and early_stopping.patience,
        "reduce_lr": reduce_lr,
    }
    for name, value in needing.items():
        if validation is None and value is not None:
            raise ConfigError(f"{name} needs rows to validate on: fit(..., validation=...)")
