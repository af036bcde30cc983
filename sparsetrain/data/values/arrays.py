# SPDX-License-Identifier: Apache-2.0
"""Validation of user arrays: anything NumPy can read becomes a checked, native, owned array.

Every function copies, so the result shares no memory with its argument, and marks the copy
read-only. Cost: one copy and one or two passes over it.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from sparsetrain.errors import DataError, first_line
from sparsetrain.labels import Label, Real
from sparsetrain.labels.label import not_finite

Array = np.ndarray[Any, np.dtype[Any]]


# Kinds of dtypes that may hold real numbers; object columns come from pandas and lists.
_NUMBERS = "biufO"
_INTEGERS = "iu"


def as_array(value: object, what: str) -> Array:
    """Return `value` as an array, or raise a `DataError` that calls it `what`."""
    if np.ma.is_masked(value):
        raise DataError(f"{what} is a masked array with masked entries; fill them first")
    try:
        return np.asarray(value)
    except (ValueError, TypeError) as error:
        raise DataError(f"{what} cannot be read as an array: {first_line(error)}") from None


def as_readonly(array: Array) -> Array:
    """Return `array`, marked read-only."""
    array.flags.writeable = False
    return array


def to_float32(array: Array, what: str) -> Array:
    """Copy to float32; numbers out of range become inf, for callers to refuse."""
    if array.dtype.kind not in _NUMBERS:
        raise DataError(f"{what} has dtype {array.dtype}; give real numbers")
    try:
        with np.errstate(over="ignore"):
            return np.array(array, dtype=np.float32, order="C", copy=True)
    except (ValueError, TypeError) as error:
        raise DataError(
            f"{what} holds something that is not a number: {first_line(error)}"
        ) from None


def to_dense(value: object) -> Array:
    """Return dense features as (B, F_dense) float32, all finite."""
    array = as_array(value, "dense")
    if array.ndim != 2:
        raise DataError(f"dense must be (rows, columns), its shape is {array.shape}")
    dense = to_float32(array, "dense")
    if not np.isfinite(dense).all():
        row, column = np.argwhere(~np.isfinite(dense))[0]
        raise DataError(
            f"dense: row {row}, column {column}: {array[row, column]} is not finite in float32; "
            "fill or drop it before making a batch"
        )
    return as_readonly(dense)


def to_ids(value: object, what: str, ndim: int) -> Array:
    """Return integer ids as int64; callers check the sign with `first_negative`."""
    array = as_array(value, what)
    if array.ndim != ndim:
        shape = "(rows, features)" if ndim == 2 else "one-dimensional"
        raise DataError(f"{what} must be {shape}, their shape is {array.shape}")
    if array.dtype.kind not in _INTEGERS and array.size:
        raise DataError(f"{what} have dtype {array.dtype}; give integers")
    return as_readonly(np.array(array, dtype=np.int64, order="C", copy=True))


def first_negative(ids: Array) -> tuple[int, ...] | None:
    """Return the index of the first negative id, or None; a uint64 from 2**63 on is negative."""
    if not ids.size or ids.min() >= 0:
        return None
    return tuple(int(i) for i in np.argwhere(ids < 0)[0])


def to_weights(value: object, what: str, count: int) -> Array:
    """Return per-sample weights as (N,) float32, all finite."""
    array = as_array(value, what)
    if array.shape != (count,):
        raise DataError(f"{what} must be ({count},), one for each id, their shape is {array.shape}")
    weights = to_float32(array, what)
    if not np.isfinite(weights).all():
        entry = int(np.argmin(np.isfinite(weights)))
        raise DataError(f"{what}: entry {entry} is not finite")
    return as_readonly(weights)


NUMBER = Real()  # for a label before its kind is known


class Weight:
    """The kind of a row's weight, with the interface of a label's kind."""

    def bad(self, values: Array) -> Array:
        """Return a mask of the numbers that are not finite in float32, or negative."""
        return not_finite(values) | (values < 0)

    def describe_bad(self, number: float, shown: object) -> str:
        """Describe the error in a weight."""
        if np.isnan(number):
            return "the weight is null or NaN; drop the row or give it one"
        return f"the weight is {shown}; it must be a finite number of 0 or more"


Kind = Label | Weight


def of_rows(value: object, what: str, kind: Kind, num_rows: int, *, several: bool = False) -> Array:
    """Return one number per row as (B,) float32; refuse numbers that do not fit `kind`.

    With `several`, there may be T numbers per row, (B, T), with NaN for missing ones.
    """
    array = as_array(value, what)
    is_matrix = several and array.ndim == 2 and array.shape[1] > 1
    if array.shape[:1] != (num_rows,) or not (array.ndim == 1 or is_matrix):
        more = f"; of T {what} they are ({num_rows}, T)" if several else ""
        raise DataError(
            f"{what} must be ({num_rows},) as dense has it, their shape is {array.shape}{more}"
        )
    numbers = to_float32(array, what)
    bad = kind.bad(numbers)
    if is_matrix:
        bad &= ~np.isnan(numbers)
    if bad.any():
        where = tuple(np.argwhere(bad)[0])
        raise DataError(
            f"{what}: row {where[0]}: {kind.describe_bad(numbers[where], array[where])}"
        )
    return as_readonly(numbers)
