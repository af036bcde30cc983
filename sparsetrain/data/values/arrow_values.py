# SPDX-License-Identifier: Apache-2.0
"""Arrow arrays of categories as the integers or texts that the key kernel reads, and back."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.types as pt

from sparsetrain.data.values import arrow_types
from sparsetrain.data.values.arrays import Array
from sparsetrain.data.values.location import Location
from sparsetrain.data.values.numeric import (
    EXACT,
    NanRule,
    exact_integers,
    fill_nulls,
    to_microseconds,
)
from sparsetrain.parsing.identity import Texts


class Integers(NamedTuple):
    """Whole numbers.

    Attributes
    ----------
    numbers : (n,) of a type of integers
    missing : (n,) bool
        Mask of missing values; their numbers are arbitrary.
    """

    numbers: Array
    missing: Array


def values_of(array: Any, nan: NanRule, location: Location) -> Integers | Texts:
    """Return the values of an Arrow array that is not a dictionary; `_READERS` has its types.

    Raises
    ------
    DataError
        If a number is not whole; names the row.
    """
    kind = arrow_types.kind_of(array.type) or arrow_types.EMPTY
    return _READERS[kind](array, nan, location)


def has_names(array: Any) -> bool:
    """Return whether an array is a dictionary of whole numbers or texts, each read once."""
    names = (arrow_types.INTEGER, arrow_types.TEXT)
    return pt.is_dictionary(array.type) and arrow_types.kind_of(array.type) in names


def _from_integers(array: Any, nan: NanRule, location: Location) -> Integers:
    return Integers(*fill_nulls(array))


def _from_floats(array: Any, nan: NanRule, location: Location) -> Integers:
    whole = exact_integers(array)  # decimals have more digits than a float
    if whole is not None:
        return Integers(*whole)
    values, missing = nan.split(array, location)
    odd = (values != np.trunc(values)) | (np.abs(values) >= EXACT)
    location.refuse(
        odd,
        lambda row: (
            f"category {values[row]} is not a whole number below 2**53; make the column dense, "
            "derive buckets of it in a schema (boundaries, quantiles or log), or store it as text"
        ),
    )
    return Integers(values.astype(np.int64), missing)


def texts_of(array: Any) -> Texts:
    """Return an Arrow array of text or bytes of any type; only views are copied."""
    if not len(array):
        return Texts(np.zeros(0, np.uint8), np.zeros(1, np.int32))
    if pt.is_string_view(array.type) or pt.is_binary_view(array.type):
        array = array.cast(pa.large_binary())
    large = pt.is_large_binary(array.type) or pt.is_large_string(array.type)
    dtype = np.dtype(np.int64 if large else np.int32)
    _, places, data = array.buffers()
    offsets = np.frombuffer(places, dtype, len(array) + 1, array.offset * dtype.itemsize)
    first, end = int(offsets[0]), int(offsets[-1])
    missing = array.is_null().to_numpy(zero_copy_only=False) if array.null_count else None
    return Texts(np.frombuffer(data or b"", np.uint8)[first:end], offsets - first, missing)


def as_binary(texts: Texts) -> Any:
    """Return texts with int64 offsets as an Arrow array (n,) of bytes, without a copy."""
    buffers = [None, pa.py_buffer(texts.offsets), pa.py_buffer(texts.data)]
    return pa.LargeBinaryArray.from_buffers(pa.large_binary(), len(texts.offsets) - 1, buffers)


def _from_digits(array: Any, nan: NanRule, location: Location) -> Integers | Texts:
    values, missing = fill_nulls(array.storage)
    if array.type.base == 10:
        return Integers(values, missing)
    return replace(hex_digits(values), missing=missing)


def hex_digits(numbers: Array) -> Texts:
    """Return 8 lower-case hex digits of each number (n,) below 2**32."""
    digits = np.frombuffer(numbers.astype(">u4").tobytes().hex().encode(), np.uint8)
    return Texts(digits, np.arange(len(numbers) + 1) * 8)


def _from_moments(array: Any, nan: NanRule, location: Location) -> Integers:
    microseconds, missing = fill_nulls(to_microseconds(array, location))
    return Integers(microseconds // 1_000_000, missing)


_READERS: dict[str, Callable[[Any, NanRule, Location], Integers | Texts]] = {
    arrow_types.INTEGER: _from_integers,
    arrow_types.FLOAT: _from_floats,
    arrow_types.TEXT: lambda array, nan, location: texts_of(array),
    arrow_types.DIGITS: _from_digits,
    arrow_types.MOMENT: _from_moments,
    arrow_types.EMPTY: _from_integers,
}
