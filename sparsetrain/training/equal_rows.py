# SPDX-License-Identifier: Apache-2.0
"""Runs of equal rows, such as a user's rows when many items are scored for one user.

Kernels compute each row independently, so the results of a run's first row hold, bit for bit, for
all its rows. If rows differ, the cost is one comparison of neighbours, feature by feature, until
all are known to differ.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from sparsetrain.compiler.dead_rows import ROW_NUMBERS
from sparsetrain.data import Batch, Ragged
from sparsetrain.data.ragged import changes
from sparsetrain.models.features import Sequence
from sparsetrain.runtime import as_numpy

_ONE_ROW = np.zeros(1, np.int64)


def distinct_inputs(
    model: Any, function: str, batch: Batch | None
) -> tuple[dict[str, Any], np.ndarray | None]:
    """Return a function's arguments, leaving out rows that equal the row before.

    Returns
    -------
    inputs : dict from str to ndarray
        As from `Model.inputs`; empty if `batch` is None.
    numbers : (B,) int64 or None
        The row of `inputs` for each row of the batch; None if no row was left out.
    """
    whole = {} if batch is None else model.inputs(batch, function=function)
    if batch is None or len(batch) == 1:
        return whole, None
    return distinct_rows(model.features, whole)


def with_row_numbers(inputs: Mapping[str, Any], names: Iterable[str], count: int) -> dict[str, Any]:
    """Return arguments for a `compute_repeated_once` program, with each run of equal rows once.

    Parameters
    ----------
    inputs : mapping from str to array
        Arguments for a batch of `count` rows.
    names : iterable of str
        Names of the arguments (count, n) to reduce, from `repeated_arguments`.
    """
    if count == 1:
        return {**inputs, ROW_NUMBERS: _ONE_ROW}
    given = {name: inputs[name] for name in names}
    rows = {n: a if isinstance(a, np.ndarray) else as_numpy(a) for n, a in given.items()}
    differ = _differ(rows)
    if differ.all():
        return {**inputs, ROW_NUMBERS: np.arange(count)}
    once = {name: array[differ] for name, array in rows.items()}
    return {**inputs, **once, ROW_NUMBERS: np.cumsum(differ) - 1}


def rows_of(vectors: np.ndarray, numbers: np.ndarray | None) -> np.ndarray:
    """Copy the rows with these numbers, or all rows if `numbers` is None."""
    return vectors.copy() if numbers is None else np.take(vectors, numbers, axis=0)


def distinct_rows(
    features: Mapping[str, Any], inputs: dict[str, Any]
) -> tuple[dict[str, Any], np.ndarray | None]:
    """Return the same as `distinct_inputs`, from the arguments for at least two rows."""
    values = {
        name: _ragged(name, feature, inputs) if isinstance(feature, Sequence) else inputs[name]
        for name, feature in features.items()
        if name in inputs
    }
    differ = _differ(values)
    if differ.all():
        return inputs, None
    rows, kept = np.flatnonzero(differ), {}
    for name, value in values.items():
        if not isinstance(value, Ragged):
            kept[name] = value[rows]
            continue
        taken = value.take(rows)
        kept |= {name: taken.ids, f"{features[name].like or name}_ends": taken.offsets[1:]}
        if taken.weights is not None:
            kept[f"{name}_weights"] = taken.weights
    return kept, np.cumsum(differ) - 1


def _ragged(name: str, feature: Sequence, inputs: Mapping[str, Any]) -> Ragged:
    ends = inputs[f"{feature.like or name}_ends"]
    return Ragged(inputs[name], np.concatenate([[0], ends]), inputs.get(f"{name}_weights"))


def _differ(values: Mapping[str, Any]) -> np.ndarray:
    """Return (B,) bool: whether a row differs from the previous row; True for the first."""
    differ = np.zeros(1, bool)
    for value in sorted(values.values(), key=lambda each: isinstance(each, Ragged)):
        differ = differ | (value.changes() if isinstance(value, Ragged) else changes(value))
        if differ.all():
            break
    return differ
