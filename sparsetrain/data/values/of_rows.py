# SPDX-License-Identifier: Apache-2.0
"""What is said of whole rows: labels of 0 and 1, weights of 0 or more. An error names the row."""

from __future__ import annotations

from typing import Any

import numpy as np

from sparsetrain.data.values.arrays import Array, bad_weight_at, label_fault, weight_fault
from sparsetrain.data.values.missing import NanRule
from sparsetrain.data.values.numeric import read_numbers
from sparsetrain.data.values.place import Place


def read_labels(array: Any, place: Place) -> Array:
    """Return (n,) float32 from integers, floats, booleans or texts of these.

    Raises
    ------
    DataError
        If a label is null, NaN, empty or neither 0 nor 1.
    """
    values = _numbers(array, place)
    bad = (values != 0) & (values != 1)
    if bad.any():
        row = int(np.argmax(bad))
        raise place.error(label_fault(values[row], f"{values[row]:g}"), row)
    return values.astype(np.float32)


def read_row_weights(array: Any, place: Place) -> Array:
    """Return (n,) float32 from integers, floats or texts of numbers.

    Raises
    ------
    DataError
        If a weight is null, NaN, negative or not finite in float32.
    """
    values = _numbers(array, place)
    with np.errstate(over="ignore"):
        weights = values.astype(np.float32)
    row = bad_weight_at(weights)
    if row is None:
        return weights
    if np.isnan(values[row]):
        raise place.error("the weight is null or NaN; drop the row or give it one", row)
    raise place.error(weight_fault(f"{values[row]:g}"), row)


def _numbers(array: Any, place: Place) -> Array:
    """Return (n,) float64, NaN where one is missing."""
    values, missing = read_numbers(array, NanRule("missing"), place)
    return np.where(missing, np.nan, values) if missing.any() else values
