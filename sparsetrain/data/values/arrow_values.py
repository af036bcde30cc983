# SPDX-License-Identifier: Apache-2.0
"""Arrow columns as numbers, and categories as the integers or texts that the key kernel reads.

Numbers are read from any numeric or text type, as float64 with a mask of missing values; dates and
timestamps are seconds since 1970. In text, `''` is missing, and `true` and `false` in any case are
1 and 0. A null is always missing, a NaN only under `NanRule("missing")`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from sparsetrain.data.values import arrow_types
from sparsetrain.data.values.arrays import (
    Array,
    Kind,
)
from sparsetrain.data.values.arrow_types import fill_nulls, require_utf8
from sparsetrain.data.values.location import Location
from sparsetrain.data.values.moments import SHOWN, to_microseconds
from sparsetrain.errors import ConfigError
from sparsetrain.parsing.identity import Texts


@dataclass(frozen=True)
class NanRule:
    """Treatment of NaN: refused ("error"), or the same as null ("missing"), as in pandas."""

    name: str = "error"

    def __post_init__(self) -> None:
        if self.name not in ("error", "missing"):
            raise ConfigError(f"nan is {self.name!r}; it must be 'error' or 'missing'")

    def split(self, array: Any, location: Location) -> tuple[Array, Array]:
        """Return a numeric array as (n,) float64, 0 where missing, and a mask of missing values."""
        stored, missing = fill_nulls(array)
        values = stored.astype(np.float64)
        finite = np.isfinite(values) if stored.dtype.kind == "f" else np.True_
        if finite.all():
            return values, missing
        bad: Any = np.isinf(values) if self.name == "missing" else ~finite
        location.refuse(bad, lambda row: _reason(values[row]))
        return np.where(finite, values, 0.0), missing | ~finite


def _reason(value: float) -> str:
    if np.isinf(value):
        return "the value is infinite; replace it by a null or a number"
    return (
        "the value is NaN; if it stands for a missing value, give a null (None), or learn the "
        "encoding with nan='missing'"
    )


_NULLS = ("null", "none", "na", "n/a", "\\n", "-", "?")
EXACT = float(2**53)  # from here on a float cannot represent every integer
_FIRST = 64  # rows of a text column that are parsed first, see `_as_floats`


def read_numbers(array: Any, nan: NanRule, location: Location) -> tuple[Array, Array]:
    """Return values (n,) float64, 0 where missing, and a mask (n,) of missing values."""
    array = arrow_types.as_plain(array)
    if arrow_types.kind_of(array.type) == arrow_types.TEXT:
        array = _parsed(array, location)
    elif arrow_types.kind_of(array.type) == arrow_types.MOMENT:
        microseconds, missing = fill_nulls(to_microseconds(array, location))
        return microseconds / 1e6, missing
    return nan.split(array, location)


def plain_floats(array: Any, location: Location, kind: str) -> Array:
    """Return numbers (n,) as float32, without a transformation; `kind` is for error messages."""
    if pt.is_float32(array.type) and not array.null_count:
        stored: Array = array.to_numpy()
        if np.isfinite(stored).all():
            return stored
    values, missing = read_numbers(array, NanRule("missing"), location)
    with np.errstate(over="ignore"):
        values = values.astype(np.float32)
    words = {True: "null or NaN", False: "too large for float32"}
    location.refuse(
        missing | ~np.isfinite(values),
        lambda row: f"the value is {words[bool(missing[row])]} {kind}",
    )
    return values


def exact_integers(array: Any) -> tuple[Array, Array] | None:
    """Return integers (n,), 0 where missing, and a mask; None if any value is not an integer.

    `read_numbers` would round integers from 2**53 on. Text and decimals are accepted if all of them
    are integers.
    """
    array = arrow_types.as_plain(array)
    if pt.is_integer(array.type):
        return fill_nulls(array)
    if arrow_types.kind_of(array.type) == arrow_types.TEXT:
        array = array.cast(pa.large_binary())
        array = pc.if_else(pc.equal(pc.binary_length(array), 0), None, array)
        if pc.any(pc.match_substring(array, b"x", ignore_case=True)).as_py():
            return None  # Arrow reads 0x10 as an integer
        array = array.cast(pa.large_string(), safe=False)
    elif not pt.is_decimal(array.type):
        return None
    for type_ in (pa.int64(), pa.uint64()):
        try:
            return fill_nulls(array.cast(type_))
        except pa.ArrowInvalid:
            continue
    return None


def _parsed(array: Any, location: Location) -> Any:
    require_utf8(array, location, bytes_too=True)
    text = array.cast(pa.large_string())
    text = pc.if_else(pc.equal(pc.binary_length(text), 0), pa.scalar(None, text.type), text)
    try:
        return _as_floats(text)
    except pa.ArrowInvalid:
        text = _without_booleans(text)
    try:
        return _as_floats(text)
    except pa.ArrowInvalid:
        row, value = next((i, v) for i, v in enumerate(text.to_pylist()) if not _is_number(v))
        fix = "; if it stands for a missing value, list it in a schema, [text] null"
        advice = fix if value.lower() in _NULLS else ""
        raise location.error(f"{value[:SHOWN]!r} is not a number{advice}", row) from None


def _as_floats(text: Any) -> Any:
    """Cast text to floats, a few rows first: Arrow formats an error for every bad value."""
    text[:_FIRST].cast(pa.float64())
    return text.cast(pa.float64())


def _without_booleans(text: Any) -> Any:
    """Replace booleans in texts by 1 and 0."""
    lower = pc.utf8_lower(text)
    for word, digit in (("true", "1"), ("false", "0")):
        text = pc.if_else(pc.equal(lower, word), pa.scalar(digit, text.type), text)
    return text


def _is_number(value: str | None) -> bool:
    try:
        pa.scalar(value, pa.large_string()).cast(pa.float64())
        return True
    except pa.ArrowInvalid:
        return False


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
    """Return the values of an Arrow array that is not a dictionary; `_READERS` has the kinds.

    Raises
    ------
    DataError
        If a number is not whole; the message names its row.
    """
    kind = arrow_types.kind_of(array.type) or arrow_types.EMPTY
    return _READERS[kind](array, nan, location)


def has_names(array: Any) -> bool:
    """Return whether an array is a dictionary of integers or texts, to be read once each."""
    names = (arrow_types.INTEGER, arrow_types.TEXT)
    return pt.is_dictionary(array.type) and arrow_types.kind_of(array.type) in names


def _from_integers(array: Any, nan: NanRule, location: Location) -> Integers:
    return Integers(*fill_nulls(array))


def _from_floats(array: Any, nan: NanRule, location: Location) -> Integers:
    whole = exact_integers(array)  # a decimal may have more digits than a float
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
    """Return an Arrow array of any text or bytes type as `Texts`; copy only views."""
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


def read_of_rows(array: Any, location: Location, kind: Kind, missing: bool = False) -> Array:
    """Return a column as (n,) float32; refuse values that do not fit `kind`.

    The column holds integers, floats, booleans or texts of these. With `missing`, nulls and NaN
    become NaN; otherwise they are refused.
    """
    values, absent = read_numbers(array, NanRule("missing"), location)
    values = np.where(absent, np.nan, values) if absent.any() else values
    # Checked before float32 can round a number to a whole one.
    bad = kind.bad(values)
    if missing:
        bad &= ~np.isnan(values)
    location.refuse(bad, lambda row: kind.describe_bad(values[row], f"{values[row]:g}"))
    with np.errstate(over="ignore"):
        return values.astype(np.float32)
