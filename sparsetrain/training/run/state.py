# SPDX-License-Identifier: Apache-2.0
"""Progress of a run: everything needed to resume besides weights and slots, as plain values.

A run needs no random generator's state: the seed, the epoch and the position determine the order of
rows, and the seed the initial weights.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from sparsetrain.data.batch import Position
from sparsetrain.errors import CheckpointError


@dataclass
class RunState:
    """The changing part of a run, stored in each checkpoint.

    Attributes
    ----------
    position : Position
        Where the next batch begins.
    rows, loss_sum, seconds : numbers
        Sums over the epoch so far; `loss_sum` weights each batch's loss by its number of rows.
    epochs : list of dict
        Completed epochs: rows, seconds, loss and, if validated, `valid`.
    log_lines, log_step, log_rows, log_loss_sum, log_seconds : numbers
        Number of lines of the log, step of its last training line, and sums since that line.
    validated : int
        Step of the last validation, -1 before the first.
    scores : dict or None
        Scores of the last validation.
    best : dict or None
        Step and value of the best validation.
    since_best : int
        Number of validations since the best.
    lr_scale : float
        Factor of the learning rate, lowered if validations do not improve.
    ended : bool
        Whether early stopping ended the run.
    plan, data
        Arguments of the run and fingerprints of its data files; a resumed run compares them.
    """

    position: Position = Position()
    rows: int = 0
    loss_sum: float = 0.0
    seconds: float = 0.0
    epochs: list[dict[str, Any]] = field(default_factory=list)
    log_lines: int = 0
    log_step: int = 0
    log_rows: int = 0
    log_loss_sum: float = 0.0
    log_seconds: float = 0.0
    validated: int = -1
    scores: dict[str, Any] | None = None
    best: dict[str, Any] | None = None
    since_best: int = 0
    lr_scale: float = 1.0
    ended: bool = False
    plan: dict[str, Any] = field(default_factory=dict)
    data: list[dict[str, Any]] | None = None

    def add(self, rows: int, loss: float, seconds: float, position: Position) -> None:
        """Count a step."""
        self.position = position
        self.rows += rows
        self.log_rows += rows
        counted = loss * rows if math.isfinite(loss) else 0.0  # otherwise the step was skipped
        self.loss_sum += counted
        self.log_loss_sum += counted
        self.seconds += seconds
        self.log_seconds += seconds

    def epoch(self) -> dict[str, Any]:
        """Return the record of the epoch so far."""
        mean = self.loss_sum / self.rows if self.rows else None
        return {"rows": self.rows, "seconds": self.seconds, "loss": mean}

    def end_epoch(self) -> None:
        """Close the epoch's record and begin the next."""
        self.epochs.append(self.epoch())
        self.rows, self.loss_sum, self.seconds = 0, 0.0, 0.0
        self.position = Position(self.position.epoch)

    @property
    def at_epoch_end(self) -> bool:
        """Whether an epoch has just ended."""
        return bool(self.epochs) and self.position == Position(self.position.epoch)

    def to_dict(self) -> dict[str, Any]:
        """Return plain values that fit JSON."""
        return {**asdict(self), "position": self.position.to_dict()}

    @classmethod
    def from_dict(cls, values: Any) -> RunState:
        """Rebuild a state from the values of `to_dict`.

        Raises
        ------
        CheckpointError
            If a value is missing, unknown or of a wrong type.
        """
        if isinstance(values, Mapping):
            values = {"lr_scale": 1.0, **values}  # older versions did not save `lr_scale`
        if not isinstance(values, Mapping) or values.keys() != _KINDS.keys():
            raise CheckpointError(
                "the saved state of the run is damaged: unknown or missing fields"
            )
        for name, fits in _KINDS.items():
            if not fits(values[name]):
                shown = f"{values[name]!r:.60}"
                raise CheckpointError(f"the saved state of the run is damaged: {name} is {shown}")
        return cls(**{**values, "position": Position.from_dict(values["position"])})


def _is_count(value: Any) -> bool:
    return type(value) is int and value >= 0


def _is_number(value: Any) -> bool:
    return type(value) is float and math.isfinite(value)


def _is_best(value: Any) -> bool:
    if value is None:
        return True
    return (
        isinstance(value, dict)
        and value.keys() == {"step", "value"}
        and _is_count(value["step"])
        and _is_number(value["value"])
    )


def _is_epoch(value: Any) -> bool:
    return (
        isinstance(value, dict)
        and {"rows", "seconds", "loss"} <= value.keys() <= {"rows", "seconds", "loss", "valid"}
        and _is_count(value["rows"])
        and (_is_number(value["loss"]) or (value["loss"] is None and not value["rows"]))
        and isinstance(value.get("valid", {}), dict)
    )


def _are_prints(value: Any) -> bool:
    if value is None:
        return True
    return isinstance(value, list) and all(isinstance(item, dict) for item in value)


_KINDS = {
    "position": lambda v: isinstance(v, dict),
    "rows": _is_count,
    "loss_sum": _is_number,
    "seconds": _is_number,
    "epochs": lambda v: isinstance(v, list) and all(map(_is_epoch, v)),
    "log_lines": _is_count,
    "log_step": _is_count,
    "log_rows": _is_count,
    "log_loss_sum": _is_number,
    "log_seconds": _is_number,
    "validated": lambda v: type(v) is int and v >= -1,
    "scores": lambda v: v is None or isinstance(v, dict),
    "best": _is_best,
    "since_best": _is_count,
    "lr_scale": lambda v: _is_number(v) and 0 <= v <= 1,
    "ended": lambda v: type(v) is bool,
    "plan": lambda v: isinstance(v, dict) and _are_prints(v.get("validation")),
    "data": _are_prints,
}
