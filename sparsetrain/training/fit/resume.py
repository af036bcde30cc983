# SPDX-License-Identifier: Apache-2.0
"""Initial state of a run: new, or that of a checkpoint if data and arguments are the same."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, NamedTuple

from sparsetrain.data.batch import Position
from sparsetrain.data.read.files import are_paths, list_files
from sparsetrain.errors import CheckpointError, ConfigError
from sparsetrain.training.fit.plan import Plan
from sparsetrain.training.run import fingerprint, require_same
from sparsetrain.training.run.state import RunState
from sparsetrain.training.trained_model import TrainedModel

Prints = list[dict[str, Any]]

_VALIDATION = "validation"  # by the name of `fit`'s argument, among what is noted of the plan


class Seen(NamedTuple):
    """What the files looked like that decide the weights; None for what is not files.

    Rows to validate on are among them where validations end the run or lower its learning rate.
    """

    data: Prints | None = None
    validation: Prints | None = None


def seen_of(train: Any, validation: Any, plan: Plan) -> Seen:
    """Look at the files of both."""
    return Seen(
        fingerprint_of(train), fingerprint_of(validation) if plan.validation_decides else None
    )


def fingerprint_of(data: Any) -> Prints | None:
    """Return what the files of `data` look like, or None if it is not files."""
    files = list_files(data) if are_paths(data) else getattr(data, "files", None)
    return fingerprint(files) if files else None


def begin(
    trainer: TrainedModel, plan: Plan, seen: Seen, resume: bool, allow_changed: Collection[str]
) -> RunState:
    """Return the state to begin with.

    Raises
    ------
    ConfigError
        If there is nothing to resume, or `allow_changed` has unknown names.
    CheckpointError
        If data or plan differ from the resumed run's and that is not allowed.
    """
    noted = plan.fixed() | {_VALIDATION: seen.validation}
    if not resume:
        now, steps = Position(trainer.epochs), trainer.steps
        return RunState(now, validated=steps or -1, log_step=steps, plan=noted, data=seen.data)
    state = trainer.run_state
    if state is None:
        raise ConfigError(
            "this trainer has no run to resume: load it from a folder that fit(run=...) wrote"
        )
    _require_known(allow_changed, {"data", _VALIDATION, *plan.fixed()})
    _require_same_plan(state.plan, plan.fixed(), allow_changed)
    if "data" not in allow_changed:
        _require_same_data(state.data, seen.data)
    if _VALIDATION not in allow_changed:
        _require_same_validation(state.plan.get(_VALIDATION), seen.validation, plan)
    state.plan, state.data, trainer.run_state = noted, seen.data, None
    return state


def _require_same_data(before: Prints | None, now: Prints | None) -> None:
    if (before is None) != (now is None):
        raise CheckpointError("this run was trained on another kind of data: files, or not files")
    if before is not None and now is not None:
        require_same(before, now)


def _require_same_validation(before: Any, now: Prints | None, plan: Plan) -> None:
    """Runs of an older version, and those that validations did not end, noted nothing."""
    if before is None or not plan.validation_decides:
        return
    if now is None:
        raise CheckpointError(
            "this run was validated on files, not what is given now: give the same files, or allow "
            f"changed {_VALIDATION}"
        )
    require_same(before, now, "validated on", _VALIDATION)


def _require_known(allowed: Collection[str], known: Collection[str]) -> None:
    for name in allowed:
        if name not in known:
            raise ConfigError(f"{name!r} cannot be allowed to change; known: {sorted(known)}")


def _require_same_plan(
    before: Mapping[str, Any], now: Mapping[str, Any], allowed: Collection[str]
) -> None:
    for name, value in now.items():
        # What a run of an older version did not note cannot have been set there.
        if name not in allowed and before.get(name, value) != value:
            raise CheckpointError(
                f"{name} was {before.get(name)!r:.100} in this run and is {value!r:.100} now: give "
                f"the same, or allow {name!r} to change"
            )
