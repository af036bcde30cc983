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
        If a weight is null, negative or not finite in float32.
    """
    values, missing = read_numbers(array, NanRule("error"), place)
    if missing.any():
        raise place.error("the weight is null; drop the row or give it one", int(missing.argmax()))
    with np.errstate(over="ignore"):
        weights = values.astype(np.float32)
    row = bad_weight_at(weights)
    if row is not None:
        raise place.error(weight_fault(f"{values[row]:g}"), row)
    return weights
