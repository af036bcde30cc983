# SPDX-License-Identifier: Apache-2.0
"""Checkpoints of a custom training loop: parameters, slots and step counts in a folder.

Before the first write to a tensor, a checkpoint is compared with the state, and every byte is
checked. Loading reads files twice, and needs memory for a few blocks.
"""

from __future__ import annotations

from collections.abc import Mapping
from os import PathLike
from pathlib import Path
from typing import Any

from sparsetrain import checkpoint, runtime
from sparsetrain.errors import CheckpointError, ConfigError
from sparsetrain.optim.state import State
from sparsetrain.runtime import NDArray
from sparsetrain.system.argument_checks import require_path
from sparsetrain.tables.collection import weights_of
from sparsetrain.tables.state_dict import (
    Finite,
    check_kinds,
    named_arrays,
    require_finite,
    writable_arrays,
)

KIND = "sparsetrain.loop"
_COUNTS = ("step", "skipped", "seed")


def save(
    folder: str | PathLike[str],
    formula: str,
    params: Mapping[str, NDArray],
    state: State,
    extra: Mapping[str, Any],
) -> None:
    """Save parameters, state and formula name; rows must be up to date. See `Optimizer.save`."""
    arrays = named_arrays(weights_of(params), state, {})
    require_finite(arrays, state.step)
    manifest = {
        "kind": KIND,
        "formula": formula,
        **{name: int(getattr(state, name)) for name in _COUNTS},
        **state.tables.layout(),
        "extra": dict(extra),
    }
    checkpoint.write(folder, arrays, manifest)


def load_(
    folder: str | PathLike[str], formula: str, params: Mapping[str, NDArray], state: State
) -> dict[str, Any]:
    """Load parameters and state saved with this formula; see `Optimizer.load_`."""
    path = require_path("folder", folder)

    def fill_(saved: checkpoint.Saved) -> tuple[dict[str, int], dict[str, Any]]:
        counts_and_extra = _validated(saved.manifest, formula, state, path)
        with writable_arrays(weights_of(params), state, {}) as target:
            try:
                check_kinds(target, saved.kinds)
            except CheckpointError as error:
                raise CheckpointError(f"{path}: {error}; {_ALIKE}") from None
            saved.check(look=(finite := Finite()).look)
            finite.require()
            saved.fill(target)  # `checkpoint.whole` starts over if a save removes files meanwhile
        return counts_and_extra

    counts, extra = checkpoint.whole(folder, fill_)
    for name, count in counts.items():
        setattr(state, name, count)
    return extra


_ALIKE = "use the same parameters, optimizer and arguments of init as when it was saved"


def _validated(
    manifest: Mapping[str, Any], formula: str, state: State, path: Path
) -> tuple[dict[str, int], dict[str, Any]]:
    """Return counts and extra values of a manifest, after a comparison with the state."""
    if manifest.get("kind") != KIND:
        raise CheckpointError(
            f"{path} holds {manifest.get('kind')!r:.60}, not a state from Optimizer.save: "
            "read a saved Trainer with sparsetrain.load"
        )
    if manifest.get("formula") != formula:
        raise CheckpointError(
            f"{path} was saved by the optimizer {manifest.get('formula')!r:.60}, not {formula!r}: "
            "load it with that formula; another formula with the same slots can then continue"
        )
    extra, counts = manifest.get("extra"), {name: manifest.get(name) for name in _COUNTS}
    for name, count in counts.items():
        if not (type(count) is int and count >= 0 and (name == "seed" or count < 1 << 62)):
            raise CheckpointError(f"{path}: its manifest has no valid {name!r}")
    if not isinstance(extra, dict):
        raise CheckpointError(f"{path}: its manifest has no valid 'extra'")
    if found := state.tables.differs(manifest):
        raise CheckpointError(f"{path}: {found}: {_ALIKE}")
    return {name: int(count) for name, count in counts.items() if count is not None}, extra


def require_tensors(params: Mapping[str, NDArray], state: State) -> None:
    """Refuse a wrong state, and parameters that are missing or not tensors.

    Raises
    ------
    ConfigError
        If `state` is not a `State`, or a parameter is missing or not a tensor; the message names
        it.
    """
    if not isinstance(state, State):
        raise ConfigError("optimizer: use the state from this optimizer's init")
    for name in {**state, **params}:
        if not isinstance(params.get(name), runtime.NDArray):
            found = f"a {type(params[name]).__name__}" if name in params else "missing"
            raise ConfigError(
                f"optimizer: parameter {name!r} is {found}; pass the tensors that the steps use"
            )
