# SPDX-License-Identifier: Apache-2.0
"""Names for everything that training changes, independent of how tables are stored.

A storage that holds many tables appears as its tables. All arrays are views: reading costs
nothing, writing into one changes the trainer.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np

from sparsetrain import runtime
from sparsetrain.errors import CheckpointError


def named_arrays(
    params: Mapping[str, runtime.NDArray],
    state: Mapping[str, Mapping[str, runtime.NDArray]],
    tables: Mapping[str, Mapping[str, slice]],
    *,
    writable: bool = False,
) -> dict[str, np.ndarray]:
    """Views of parameters and slots by logical name.

    Parameters
    ----------
    params : mapping
        Parameters by name.
    state : mapping
        Slots by parameter and slot name.
    tables : mapping
        For the parameters that are storages: the rows of each table.
    writable : bool
        Whether the views may be written.
    """
    named: dict[str, np.ndarray] = {}
    for name, param in params.items():
        parts = {"": param, **{f":{slot}": t for slot, t in state.get(name, {}).items()}}
        for suffix, tensor in parts.items():
            view = runtime.as_numpy(tensor, writable=writable)
            for logical, part in _split(name, view, tables):
                named[logical + suffix] = part
    return named


def load_arrays_(target: Mapping[str, np.ndarray], source: Mapping[str, np.ndarray]) -> None:
    """Copy `source` into the views of `target`; checks everything before the first write.

    Raises
    ------
    CheckpointError
        If names, shapes or dtypes differ.
    """
    missing, unknown = sorted(target.keys() - source.keys()), sorted(source.keys() - target.keys())
    if missing or unknown:
        what = f"{missing[0]!r} is missing" if missing else f"{unknown[0]!r} is unknown"
        raise CheckpointError(f"saved arrays do not belong to this model and optimizer: {what}")
    for name, view in target.items():
        if source[name].shape != view.shape or source[name].dtype != view.dtype:
            raise CheckpointError(
                f"saved array {name!r} is {source[name].shape} {source[name].dtype}, the model's "
                f"is {view.shape} {view.dtype}"
            )
    for name, view in target.items():
        view[...] = source[name]


def _split(
    name: str, view: np.ndarray, tables: Mapping[str, Mapping[str, slice]]
) -> Iterator[tuple[str, np.ndarray]]:
    if name not in tables:
        yield name, view
        return
    prefix, leaf = name.split(".")[0], name.rsplit(".", 1)[1]
    for table, rows in tables[name].items():
        yield f"{prefix}.{table}.{leaf}", view[rows]
