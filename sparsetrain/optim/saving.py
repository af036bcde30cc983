# SPDX-License-Identifier: Apache-2.0
"""What a loop of one's own must keep, as a folder: parameters, slots, steps; `checkpoint`'s files.

The state knows what it was made for, so all is compared, and every byte read once, before the first
write into a tensor. Cost of loading: files are read twice, in no more memory than some blocks.
"""

from __future__ import annotations

from collections.abc import Mapping
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sparsetrain import checkpoint, runtime
from sparsetrain.errors import CheckpointError, ConfigError
from sparsetrain.optim.state import State
from sparsetrain.optim.state_dict import check_kinds, named_arrays, writable_arrays
from sparsetrain.runtime import NDArray
from sparsetrain.system.argument_checks import require_path, require_type

if TYPE_CHECKING:
    from sparsetrain.optim.optimizer import Optimizer

KIND = "sparsetrain.loop"
_COUNTS = ("step", "skipped", "seed")


def save(
    optimizer: Optimizer,
    folder: str | PathLike[str],
    params: Mapping[str, NDArray],
    state: State,
    extra: Mapping[str, Any],
) -> None:
    """See `Optimizer.save`."""
    _require_tensors(params, state)
    require_type("extra", extra, Mapping, "a mapping")
    optimizer.flush_(params, state)
    about = {
        "kind": KIND,
        "formula": optimizer.formula.name,
        **{name: int(getattr(state, name)) for name in _COUNTS},
        "tables": _spans(state),
        "exact": _exact(state),
        "extra": dict(extra),
    }
    checkpoint.write(folder, named_arrays(params, state, {}), about)


def load_(
    optimizer: Optimizer,
    folder: str | PathLike[str],
    params: Mapping[str, NDArray],
    state: State,
) -> dict[str, Any]:
    """See `Optimizer.load_`."""
    _require_tensors(params, state)
    path = require_path("folder", folder)

    def fill_(saved: checkpoint.Saved) -> tuple[dict[str, int], dict[str, Any]]:
        believed = _believed(saved.manifest, optimizer.formula.name, state, path)
        with writable_arrays(params, state, {}) as target:
            try:
                check_kinds(target, saved.kinds)
            except CheckpointError as error:
                raise CheckpointError(f"{path}: {error}; {_ALIKE}") from None
            saved.check()
            saved.fill(target)  # a save meanwhile takes the files away: then all begins anew
        return believed

    counts, extra = checkpoint.whole(folder, fill_)
    for name, count in counts.items():
        setattr(state, name, count)
    optimizer.restored_(state)
    return extra


_ALIKE = "make parameters, optimizer and init's arguments as they were when it was saved"


def _believed(
    about: Mapping[str, Any], formula: str, state: State, path: Path
) -> tuple[dict[str, int], dict[str, Any]]:
    """Counts and the caller's own values of a manifest, if it is that of such a state."""
    if about.get("kind") != KIND:
        raise CheckpointError(
            f"{path} holds {about.get('kind')!r:.60}, not what Optimizer.save wrote: "
            "sparsetrain.load reads what a Trainer saved"
        )
    if about.get("formula") != formula:
        raise CheckpointError(
            f"{path} was saved by the optimizer {about.get('formula')!r:.60}, not {formula!r}: "
            "load it by one of that formula; another with the same slots may take the next step"
        )
    extra, counts = about.get("extra"), {name: about.get(name) for name in _COUNTS}
    for name, count in counts.items():
        if not (type(count) is int and count >= 0 and (name == "seed" or count < 1 << 62)):
            raise CheckpointError(f"{path}: its manifest lacks or garbles {name!r}")
    if not isinstance(extra, dict):
        raise CheckpointError(f"{path}: its manifest lacks or garbles 'extra'")
    spans = _spans(state)
    if about.get("tables") != spans:
        raise CheckpointError(
            f"{path}: init was given other tables, {about.get('tables')!r:.200}; here "
            f"{spans!r:.200}: {_ALIKE}"
        )
    exact, before = _exact(state), about.get("exact")
    if exact and before and exact != before:  # where one has none, its slot is missing
        raise CheckpointError(
            f"{path}: mode 'exact' was that of {before!r:.200}; here of {exact!r:.200}: {_ALIKE}"
        )
    return {name: int(count) for name, count in counts.items() if count is not None}, extra


def _spans(state: State) -> dict[str, dict[str, list[int]]]:
    """Of each storage the rows of its tables, as `init` was told."""
    return {
        storage: {name: [int(rows.start), int(rows.stop)] for name, rows in tables.items()}
        for storage, tables in state.tables.items()
    }


def _exact(state: State) -> dict[str, list[str]]:
    """Of each parameter the tables whose rows are caught up: rows of others have no count."""
    found: dict[str, list[str]] = {}
    for name, number in state.histories:
        found.setdefault(name, []).extend(state.ranges[name][number].names)
    return {name: sorted(tables) for name, tables in found.items()}


def _require_tensors(params: Mapping[str, NDArray], state: State) -> None:
    if not isinstance(state, State):
        raise ConfigError("optimizer: use the state from this optimizer's init")
    for name in {**state, **params}:
        if not isinstance(params.get(name), runtime.NDArray):
            found = f"a {type(params[name]).__name__}" if name in params else "missing"
            raise ConfigError(
                f"optimizer: parameter {name!r} is {found}; give the tensors that steps are taken "
                "with"
            )
