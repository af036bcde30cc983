# SPDX-License-Identifier: Apache-2.0
"""Initial state of a run: new, or a checkpoint's if data and arguments are unchanged.

Files are compared by fingerprints: the size, and a hash of both ends and of blocks in between. A
parquet footer is at the end and holds counts and statistics of every row group, so any rewrite
shows. A change of single bytes in the middle of a text file may be missed. Cost: at most 5 MB read
from each file.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

from sparsetrain.data.batch import Position
from sparsetrain.data.read.open_source import are_paths, list_files
from sparsetrain.data.read.source import open_file
from sparsetrain.errors import CheckpointError, ConfigError, DataError, first_line
from sparsetrain.training.fit.arguments import FitArguments
from sparsetrain.training.run.state import RunState

Prints = list[dict[str, Any]]

_VALIDATION = "validation"  # key in the saved arguments, named like `fit`'s argument


class Seen(NamedTuple):
    """Fingerprints of the files that affect the weights; None for data that are not files.

    Validation files are included if validations end the run or reduce its learning rate.
    """

    data: Prints | None = None
    validation: Prints | None = None


def seen_of(train: Any, validation: Any, plan: FitArguments) -> Seen:
    """Fingerprint the training and validation files."""
    return Seen(
        fingerprint_of(train), fingerprint_of(validation) if plan.validation_decides else None
    )


def fingerprint_of(data: Any) -> Prints | None:
    """Return the fingerprints of the files of `data`, or None if they are not files."""
    files = list_files(data) if are_paths(data) else getattr(data, "files", None)
    return fingerprint(files) if files else None


def begin(
    trainer: Any, plan: FitArguments, seen: Seen, resume: bool, allow_changed: Collection[str]
) -> RunState:
    """Return the initial state of a run.

    Raises
    ------
    ConfigError
        If there is nothing to resume, or `allow_changed` has unknown names.
    CheckpointError
        If data or arguments differ from the resumed run's, and `allow_changed` does not name them.
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
        was = "data that are not files" if before is None else "files"
        raise CheckpointError(
            f"this run was trained on {was}: pass the same data, or allow changed data"
        )
    if before is not None and now is not None:
        require_same(before, now)


def _require_same_validation(before: Any, now: Prints | None, plan: FitArguments) -> None:
    """Compare the validation files, if the run saved their fingerprints."""
    if before is None or not plan.validation_decides:
        return
    if now is None:
        raise CheckpointError(
            "this run was validated on files, but now there are none: pass the same files, or "
            f"allow changed {_VALIDATION}"
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
        # Runs of older versions lack keys that did not exist then.
        if name not in allowed and before.get(name, value) != value:
            raise CheckpointError(
                f"{name} was {before.get(name)!r:.100} in this run and is {value!r:.100} now: pass "
                f"the same value, or allow {name!r} to change"
            )


_BLOCK = 1 << 16
_BLOCKS = 64

Print = dict[str, Any]


def fingerprint(files: Sequence[str]) -> list[Print]:
    """Return name, size in bytes and hash of each file, in their order.

    Raises
    ------
    DataError
        If a file cannot be read.
    """
    return [_of_file(path) for path in files]


def require_same(
    saved: Sequence[Mapping[str, Any]],
    now: Sequence[Print],
    used: str = "trained on",
    name: str = "data",
) -> None:
    """Compare the files that a run began with and the current files.

    Parameters
    ----------
    saved, now : sequences of dict
        Results of `fingerprint`.
    used, name : str
        For messages: how the run used the files, and the name that allows them to change.

    Raises
    ------
    CheckpointError
        If a file is missing, added or different; the message names the first.
    """
    way_out = f"pass the same files in the same order, or allow changed {name}"
    if len(saved) != len(now):
        raise CheckpointError(f"this run was {used} {len(saved)} files, not {len(now)}: {way_out}")
    for before, after in zip(saved, now, strict=True):
        # A file may move; its content may not change.
        if (before.get("bytes"), before.get("sha256")) != (after["bytes"], after["sha256"]):
            raise CheckpointError(
                f"{after['name']} is not the file this run was {used}, which was "
                f"{before.get('name')!s:.200}, or it has changed since then, from "
                f"{before.get('bytes')!s:.20} to {after['bytes']} bytes: {way_out}"
            )


def _of_file(path: str) -> Print:
    try:
        with open_file(path) as file:
            size = file.seek(0, os.SEEK_END)
            whole = hashlib.sha256()
            for start in _starts(size):
                file.seek(start)
                whole.update(file.read(_BLOCK))
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {first_line(error)}") from None
    return {"name": os.path.basename(path), "bytes": size, "sha256": whole.hexdigest()}


def _starts(size: int) -> Sequence[int]:
    if size <= _BLOCK * _BLOCKS:
        return range(0, size, _BLOCK)
    return [(size - _BLOCK) * block // (_BLOCKS - 1) for block in range(_BLOCKS)]
