# SPDX-License-Identifier: Apache-2.0
"""Settings of a run, and those that may not change when it is resumed."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from sparsetrain.errors import ConfigError
from sparsetrain.system.argument_checks import require_int, require_non_negative

# Score -> whether a larger one is better.
MONITORS = {"logloss": False, "ne": False, "auc": True}


@dataclass(frozen=True)
class EarlyStopping:
    """When a run ends before its last epoch, and which validation is its best.

    With patience, `fit` ends with the weights of the best validation, whichever epoch was the last;
    without, and after a stop, with the last weights. Without a run folder a copy of all weights and
    slots is kept for that.

    Parameters
    ----------
    monitor : {"logloss", "ne", "auc"}
        The validation score that is watched.
    patience : int, optional
        Validations without a better score after which training ends; None watches only.
    min_delta : float
        What counts as better: more than this.
    """

    monitor: str = "logloss"
    patience: int | None = None
    min_delta: float = 0.0

    def __post_init__(self) -> None:
        if self.monitor not in MONITORS:
            raise ConfigError(f"monitor is {self.monitor!r}; it must be one of {list(MONITORS)}")
        if self.patience is not None:
            object.__setattr__(self, "patience", require_int("patience", self.patience))
        object.__setattr__(self, "min_delta", require_non_negative("min_delta", self.min_delta))

    def is_better(self, score: float | None, best: float | None) -> bool:
        """Return whether `score` beats `best`; a score that is not defined beats nothing."""
        if score is None or score != score:
            return False
        if best is None:
            return True
        gain = score - best if MONITORS[self.monitor] else best - score
        return gain > self.min_delta


@dataclass(frozen=True)
class Plan:
    """The numbers of one call of `Trainer.fit`.

    Attributes
    ----------
    until : int
        Number of the epoch before which training ends.
    batch_size : int
    seed : int or None
        Of the order of the rows; None keeps that of the data.
    validate_every : int or None
        Steps between validations; None for the end of each epoch alone.
    accumulate : int
        Parts in which a batch is computed.
    precision : str
        What matrix products read.
    loss_scale : dict or None
        The rule of the loss's scale, in plain values.
    """

    until: int
    batch_size: int
    seed: int | None
    validate_every: int | None = None
    early_stopping: EarlyStopping = EarlyStopping()
    check_numerics: bool = False
    accumulate: int = 1
    precision: str = "float32"
    loss_scale: dict[str, Any] | None = None

    def __post_init__(self) -> None:
        numbers = {"batch_size": self.batch_size, "validate_every": self.validate_every}
        for name, value in numbers.items():
            if value is not None or name == "batch_size":
                object.__setattr__(self, name, require_int(name, value))

    def fixed(self) -> dict[str, Any]:
        """Return what decides the weights, as plain values by the names of `fit`'s arguments."""
        return {
            "batch_size": self.batch_size,
            "shuffle": self.seed is not None,
            "validate_every": self.validate_every,
            "early_stopping": asdict(self.early_stopping),
            "accumulate": self.accumulate,
            "precision": self.precision,
            "loss_scale": self.loss_scale,
        }
