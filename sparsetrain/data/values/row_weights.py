# SPDX-License-Identifier: Apache-2.0
"""The weights of rows to float32 numbers of 0 or more; anything else is an error of its row."""

from __future__ import annotations

from typing import Any

import numpy as np

from .arrays import Array, bad_weight_at, weight_fault
from .missing import NanRule
from .numeric import read_numbers
from .place import Place


def read_row_weights(array: Any, place: Place) -> Array:
    """Return (n,) float32 from integers, floats or texts of numbers.

    Raises
    ------
    DataError
        If a weight is null, NaN, negative or not finite in float32.
    """
    values, missing = read_numbers(array, NanRule("missing"), place)
    if missing.any():
        values = np.where(missing, np.nan, values)
    with np.errstate(over="ignore"):
        weights = values.astype(np.float32)
    row = bad_weight_at(weights)
    if row is not None:
        raise place.error(_fault(values[row]), row)
    return weights


def _fault(value: float) -> str:
    if np.isnan(value):
        return "the weight is null or NaN; drop the row or give it one"
    return weight_fault(f"{value:g}")
