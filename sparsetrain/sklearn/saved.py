# SPDX-License-Identifier: Apache-2.0
"""State that an estimator stores in its trainer's manifest, with a check for each entry.

A saved folder may come from anyone, so only known entries with valid values are restored. A pickled
estimator may only contain files with names of checkpoint files.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from sparsetrain import checkpoint, data
from sparsetrain.errors import CheckpointError
from sparsetrain.labels import Label
from sparsetrain.training.run import Run

ESTIMATOR = "estimator"  # key of this state in the manifest
_MOST = 1 << 62


class Field(NamedTuple):
    """An entry's check, and its conversion to an attribute."""

    is_right: Callable[[Any], bool]
    made: Callable[[Any], Any] = lambda value: value
    optional: bool = False


def _is_count(value: Any) -> bool:
    return type(value) is int and 0 <= value < _MOST


def _is_number(value: Any) -> bool:
    return type(value) in (int, float) and abs(value) <= sys.float_info.max


def _are_names(value: Any) -> bool:
    texts = isinstance(value, list) and all(isinstance(name, str) for name in value)
    return texts and 0 < len({*value}) == len(value)


def _are_classes(value: Any) -> bool:
    """Return whether a value is a sorted list of two or more distinct values of one type."""
    if not (isinstance(value, list) and len(value) > 1 and len({*map(type, value)}) == 1):
        return False
    kinds = (
        lambda each: isinstance(each, (str, bool)),
        lambda each: _is_number(each) and abs(each) < _MOST // 2,
    )
    known = any(all(map(kind, value)) for kind in kinds)
    return known and all(first < second for first, second in pairwise(value))


NUMBER = Field(_is_number, float)
POSITIVE = Field(lambda value: _is_number(value) and value > 0, float)
CLASSES = Field(_are_classes, np.array)
# Entries of every estimator.
KEPT: dict[str, Field] = {
    "constant_": Field(lambda value: value is None or isinstance(value, str)),
    "n_features_in_": Field(lambda value: _is_count(value) and value > 0),
    "n_iter_": Field(_is_count),
    "feature_names_in_": Field(_are_names, lambda names: np.array(names, object), optional=True),
}


def kept_of(estimator: Any, fields: Mapping[str, Field]) -> dict[str, Any]:
    """Return the saved state of a fitted estimator, for JSON."""
    kept = {name: getattr(estimator, name) for name in fields if hasattr(estimator, name)}
    return {n: v.tolist() if isinstance(v, np.ndarray) else v for n, v in kept.items()}


def restored(folder: str | Path, fields: Mapping[str, Field]) -> dict[str, Any]:
    """Return the attributes of the estimator in a saved folder, after checking each.

    Raises
    ------
    CheckpointError
        If an entry is missing, unknown or invalid.
    """
    extra = Run(folder).manifest().get("extra")
    kept = extra.get(ESTIMATOR) if isinstance(extra, dict) else None
    if not isinstance(kept, dict):
        raise CheckpointError(f"{folder} was not written by an estimator's save")
    needed = {name for name, field in fields.items() if not field.optional}
    if wrong := sorted((kept.keys() - fields.keys()) | (needed - kept.keys())):
        is_there = "has" if wrong[0] in kept else "lacks"
        raise CheckpointError(
            f"{folder} {is_there} the entry {wrong[0]!r:.60}, unlike an estimator of this class: "
            "was it saved by a different class?"
        )
    for name, value in kept.items():
        if not fields[name].is_right(value):
            raise CheckpointError(f"{folder}: its manifest has an invalid {name!r}: {value!r:.60}")
    return {name: fields[name].made(value) for name, value in kept.items()}


def require_names_of(
    folder: str | Path, kept: Mapping[str, Any], schema: data.Schema, label: Label
) -> None:
    """Refuse columns that do not match the encoder, and a label of the wrong kind.

    Raises
    ------
    CheckpointError
        If the features, the constant column or the label do not match.
    """
    if schema.all_labels.only != label or schema.weights is None:
        raise CheckpointError(f"{folder} must have one {label} label, with weights")
    stored = {*(schema.categories or ())} - {*schema.derived}
    constant, names = kept["constant_"], kept.get("feature_names_in_")
    if constant not in (None, *stored) or (names is not None and constant in names):
        raise CheckpointError(f"{folder}: {constant!r:.60} is not its constant column")
    if names is None:
        return
    missing = sorted({*schema.dense, *schema.inputs, *stored} - {*names, constant})
    if len(names) != kept["n_features_in_"] or missing:
        raise CheckpointError(
            f"{folder}: its {len(names)} features do not match its encoder"
            f"{f', which has {missing[0]!r:.60}' if missing else ''}"
        )


def saved_files(save: Callable[[Path], None]) -> dict[str, bytes]:
    """Return the files that `save` writes, by name."""
    with tempfile.TemporaryDirectory() as folder:
        save(Path(folder) / "saved")
        return {file.name: file.read_bytes() for file in (Path(folder) / "saved").iterdir()}


@contextmanager
def unpacked(files: Any) -> Iterator[Path]:
    """Yield a temporary folder with these files.

    Raises
    ------
    CheckpointError
        If a name is not the name of a checkpoint file.
    """
    for name, content in files.items():
        if not (isinstance(name, str) and checkpoint.is_ours(name) and isinstance(content, bytes)):
            raise CheckpointError(f"the pickled estimator has an unknown file {name!r:.60}")
    with tempfile.TemporaryDirectory() as folder:
        for name, content in files.items():
            with checkpoint.new_file(Path(folder) / name) as file:
                file.write(content)
        yield Path(folder)
