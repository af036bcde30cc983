# SPDX-License-Identifier: Apache-2.0
"""Labels, and row weights (0 or more), as float32. Errors name the row."""

from __future__ import annotations

from typing import Any

import numpy as np

from sparsetrain.data.values.arrays import (
    Array,
    as_array,
    as_readonly,
    to_float32,
)
from sparsetrain.data.values.location import Location
from sparsetrain.data.values.numeric import NanRule, read_numbers
from sparsetrain.errors import DataError
from sparsetrain.labels import Binary, Label, Real

_NUMBER = Real()
BINARY = Binary()


def to_labels(value: object, num_rows: int) -> Array:
    """Return labels as (B,) float32, or (B, T) for several, with NaN where one is missing.

    The model checks them against their kinds.
    """
    array = as_array(value, "labels")
    if array.shape[:1] != (num_rows,) or array.ndim > 2 or array.shape[1:] in ((0,), (1,)):
        raise DataError(
            f"labels must be ({num_rows},) as dense has it, their shape is {array.shape}; of T "
            f"labels they are ({num_rows}, T)"
        )
    labels = to_float32(array, "labels")
    bad = _bad(labels, _NUMBER, labels.ndim == 2)
    if bad.any():
        where = tuple(np.argwhere(bad)[0])
        raise DataError(
            f"labels: row {where[0]}: {_NUMBER.describe_bad(labels[where], array[where])}"
        )
    return as_readonly(labels)


def read_labels(
    array: Any, location: Location, label: Label = BINARY, missing: bool = False
) -> Array:
    """Return (n,) float32 from integers, floats, booleans or their texts.

    With `missing`, nulls and NaN become NaN; otherwise they are refused.
    """
    values = _numbers(array, location)
    # Checked before float32 can round a number to a whole one.
    bad = _bad(values, label, missing)
    location.refuse(bad, lambda row: label.describe_bad(values[row], f"{values[row]:g}"))
    with np.errstate(over="ignore"):
        return values.astype(np.float32)


def _bad(labels: Array, label: Label, missing: bool) -> Array:
    """Return a mask of labels that are invalid for their kind; with `missing`, NaN is valid."""
    bad = label.bad(labels)
    return bad & ~np.isnan(labels) if missing else bad


def to_row_weights(value: object, num_rows: int) -> Array:
    """Return the weights of rows as (B,) float32, all finite and 0 or more."""
    array = as_array(value, "weights")
    if array.shape != (num_rows,):
        raise DataError(
            f"weights must be ({num_rows},) as dense has it, their shape is {array.shape}"
        )
    weights = to_float32(array, "weights")
    row = _first_bad_weight(weights)
    if row is not None:
        raise DataError(f"weights: row {row}: {_describe_bad_weight(array[row])}")
    return as_readonly(weights)


def read_row_weights(array: Any, location: Location) -> Array:
    """Return (n,) float32 from integers, floats or texts of numbers."""
    values = _numbers(array, location)
    with np.errstate(over="ignore"):
        weights = values.astype(np.float32)
    row = _first_bad_weight(weights)
    if row is None:
        return weights
    if np.isnan(values[row]):
        raise location.error("the weight is null or NaN; drop the row or give it one", row)
    raise location.error(_describe_bad_weight(f"{values[row]:g}"), row)


def _first_bad_weight(weights: Array) -> int | None:
    """Return the first row with a negative or non-finite weight, or None."""
    bad = ~((weights >= 0) & np.isfinite(weights))
    return int(np.argmax(bad)) if bad.any() else None


def _describe_bad_weight(shown: object) -> str:
    """Describe the error in a row's weight."""
    return f"the weight is {shown}; it must be a finite number of 0 or more"


def _numbers(array: Any, location: Location) -> Array:
    """Return (n,) float64, NaN where missing."""
    values, missing = read_numbers(array, NanRule("missing"), location)
    return np.where(missing, np.nan, values) if missing.any() else values
