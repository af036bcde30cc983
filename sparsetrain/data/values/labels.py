# SPDX-License-Identifier: Apache-2.0
"""Labels, by their kind, and row weights (0 or more) as float32. Errors name the row."""

from __future__ import annotations

from typing import Any

import numpy as np

from sparsetrain.data.values.arrays import (
    Array,
    LabelKind,
    bad_labels,
    describe_bad_label,
    describe_bad_weight,
    first_bad_weight,
)
from sparsetrain.data.values.location import Location
from sparsetrain.data.values.numeric import NanRule, read_numbers


def read_labels(
    array: Any, location: Location, kind: LabelKind = "binary", missing: bool = False
) -> Array:
    """Return (n,) float32 from integers, floats, booleans or texts of these.

    With `missing`, nulls and NaN are NaN; otherwise they are refused.
    """
    values = _numbers(array, location)
    with np.errstate(over="ignore"):
        labels = values.astype(np.float32)
    bad = bad_labels(labels, kind, missing)
    location.refuse(bad, lambda row: describe_bad_label(values[row], f"{values[row]:g}", kind))
    return labels


def read_row_weights(array: Any, location: Location) -> Array:
    """Return (n,) float32 from integers, floats or texts of numbers."""
    values = _numbers(array, location)
    with np.errstate(over="ignore"):
        weights = values.astype(np.float32)
    row = first_bad_weight(weights)
    if row is None:
        return weights
    if np.isnan(values[row]):
        raise location.error("the weight is null or NaN; drop the row or give it one", row)
    raise location.error(describe_bad_weight(f"{values[row]:g}"), row)


def _numbers(array: Any, location: Location) -> Array:
    """Return (n,) float64, NaN where one is missing."""
    values, missing = read_numbers(array, NanRule("missing"), location)
    return np.where(missing, np.nan, values) if missing.any() else values
