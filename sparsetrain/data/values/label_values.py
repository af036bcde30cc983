# SPDX-License-Identifier: Apache-2.0
"""Numbers of rows: labels, and weights (0 or more), as float32. Errors name the row."""

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
from sparsetrain.labels import Label, Real
from sparsetrain.labels.label import not_finite

NUMBER = Real()  # for a label before its kind is known


class Weight:
    """The kind of a row's weight, with the checks that a `Label` has."""

    def bad(self, values: Array) -> Array:
        """Return which numbers are not finite in float32, or below 0."""
        return not_finite(values) | (values < 0)

    def describe_bad(self, number: float, shown: object) -> str:
        """Describe the error in a weight."""
        if np.isnan(number):
            return "the weight is null or NaN; drop the row or give it one"
        return f"the weight is {shown}; it must be a finite number of 0 or more"


Kind = Label | Weight


def of_rows(value: object, what: str, kind: Kind, num_rows: int, *, several: bool = False) -> Array:
    """Return a number for each row as (B,) float32, all of their kind.

    With `several` there may be T for each row, (B, T), with NaN where one is missing.
    """
    array = as_array(value, what)
    is_matrix = several and array.ndim == 2 and array.shape[1] > 1
    if array.shape[:1] != (num_rows,) or not (array.ndim == 1 or is_matrix):
        more = f"; of T {what} they are ({num_rows}, T)" if several else ""
        raise DataError(
            f"{what} must be ({num_rows},) as dense has it, their shape is {array.shape}{more}"
        )
    numbers = to_float32(array, what)
    bad = _bad(numbers, kind, is_matrix)
    if bad.any():
        where = tuple(np.argwhere(bad)[0])
        raise DataError(
            f"{what}: row {where[0]}: {kind.describe_bad(numbers[where], array[where])}"
        )
    return as_readonly(numbers)


def read_of_rows(array: Any, location: Location, kind: Kind, missing: bool = False) -> Array:
    """Return (n,) float32 from integers, floats, booleans or texts of these, all of their kind.

    With `missing`, nulls and NaN are NaN; otherwise they are refused.
    """
    values, absent = read_numbers(array, NanRule("missing"), location)
    values = np.where(absent, np.nan, values) if absent.any() else values
    # Checked before float32 can round a number to a whole one.
    bad = _bad(values, kind, missing)
    location.refuse(bad, lambda row: kind.describe_bad(values[row], f"{values[row]:g}"))
    with np.errstate(over="ignore"):
        return values.astype(np.float32)


def _bad(numbers: Array, kind: Kind, missing: bool) -> Array:
    """Return which numbers are not of their kind; with `missing`, NaN is allowed."""
    bad = kind.bad(numbers)
    return bad & ~np.isnan(numbers) if missing else bad
