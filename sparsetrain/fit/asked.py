# SPDX-License-Identifier: Apache-2.0
"""What `Trainer.fit` is asked for, checked before anything is read, as the plan of its run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from sparsetrain.errors import ConfigError
from sparsetrain.fit.plan import EarlyStopping, Plan
from sparsetrain.given import require_kind, require_whole
from sparsetrain.run import Run


def plan_of(
    trainer: Any,
    *,
    epochs: int,
    resume: bool,
    batch_size: int,
    shuffle: bool,
    validate_every: int | None,
    early_stopping: EarlyStopping | None,
    check_numerics: bool,
) -> Plan:
    """Return the numbers of a call, with those that the trainer has.

    Raises
    ------
    ConfigError
        If a number is out of range.
    """
    epochs = require_whole("epochs", epochs)
    return Plan(
        until=epochs if resume else trainer.epochs + epochs,
        batch_size=batch_size,
        seed=trainer.seed if shuffle else None,
        validate_every=validate_every,
        early_stopping=early_stopping or EarlyStopping(),
        check_numerics=check_numerics,
        accumulate=trainer.accumulate,
        precision=str(trainer.precision),
        loss_scale=None if trainer.scaling is None else trainer.scaling.rule.to_dict(),
    )


def check_objects(stop: Any, run: Any, early_stopping: Any) -> None:
    """Refuse arguments of another type.

    Raises
    ------
    ConfigError
        It says what to give.
    """
    if stop is not None and not callable(stop):
        raise ConfigError(f"stop is {stop!r:.60}; give a function without arguments")
    require_kind("run", run, (Run, str, Path), "a Run, or the path of its folder")
    fix = "an EarlyStopping, such as EarlyStopping(patience=3)"
    require_kind("early_stopping", early_stopping, EarlyStopping, fix)


def require_validation(
    validation: Any, validate_every: int | None, early_stopping: EarlyStopping | None
) -> None:
    """Refuse to validate, or to stop by it, without rows.

    Raises
    ------
    ConfigError
        It names the argument that needs them.
    """
    needing = {
        "validate_every": validate_every,
        "early_stopping": early_stopping and early_stopping.patience,
    }
    for name, value in needing.items():
        if validation is None and value is not None:
            raise ConfigError(f"{name} needs rows to validate on: fit(..., validation=...)")
