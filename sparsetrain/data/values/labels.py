# SPDX-License-Identifier: Apache-2.0
"""The label column to float32 zeros and ones; anything else is an error that names its row."""

from __future__ import annotations

from typing import Any

import numpy as np

from .arrays import Array, label_fault
from .missing import NanRule
from .numeric import read_numbers
from .place import Place


def read_labels(array: Any, place: Place) -> Array:
    """Return (n,) float32 from integers, floats, booleans or texts of these.

    Raises
    ------
    DataError
        If a label is null, NaN, empty or neither 0 nor 1.
    """
    values, missing = read_numbers(array, NanRule("missing"), place)
    if missing.any():
        values = np.where(missing, np.nan, values)
    bad = (values != 0) & (values != 1)
    if bad.any():
        row = int(np.argmax(bad))
        raise place.error(label_fault(values[row], f"{values[row]:g}"), row)
    return values.astype(np.float32)
