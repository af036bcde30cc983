# SPDX-License-Identifier: Apache-2.0
"""One numeric column as float64 values and a missing mask, whatever its Arrow type.

Text is parsed: `''` is missing, `true` and `false` in any case are 1 and 0, as in a column of
booleans. A value that is no number is an error that names its row.
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from sparsetrain.data.values import kinds
from sparsetrain.data.values.arrays import Array
from sparsetrain.data.values.filled import filled
from sparsetrain.data.values.missing import NanRule
from sparsetrain.data.values.place import Place
from sparsetrain.data.values.text import as_bytes

_NULLS = ("null", "none", "na", "n/a", "\\n", "-", "?")
EXACT = float(2**53)  # from here on a float no longer tells neighbouring integers apart
_SHOWN = 40  # characters of a bad value that fit a one-line message


def read_numbers(array: Any, nan: NanRule, place: Place) -> tuple[Array, Array]:
    """Return values (n,) float64, 0 where missing, and which are missing (n,) bool.

    Raises
    ------
    DataError
        If a value is no number, infinite, or NaN where NaN is an error.
    """
    if pt.is_dictionary(array.type):
        array = array.dictionary_decode()
    if kinds.kind_of(array.type) == kinds.TEXT:
        array = _parsed(array, place)
    return nan.split(array, place)


def exact_integers(array: Any) -> tuple[Array, Array] | None:
    """Return integers (n,), 0 where missing, and which are missing (n,) bool; None if others occur.

    `read_numbers` rounds those from 2**53 on. Text and decimals that are integers count as such.
    """
    if pt.is_dictionary(array.type):
        array = array.dictionary_decode()
    if pt.is_integer(array.type):
        return filled(array)
    if kinds.kind_of(array.type) == kinds.TEXT:
        array = as_bytes(array)
        array = pc.if_else(pc.equal(pc.binary_length(array), 0), None, array)
        if pc.any(pc.match_substring(array, b"x", ignore_case=True)).as_py():
            return None  # Arrow takes 0x10 for an integer
        array = array.cast(pa.large_binary()).cast(pa.large_string(), safe=False)
    elif not pt.is_decimal(array.type):
        return None
    for type_ in (pa.int64(), pa.uint64()):
        try:
            return filled(array.cast(type_))
        except pa.ArrowInvalid:
            continue
    return None


def _parsed(array: Any, place: Place) -> Any:
    text = _as_string(array, place)
    text = pc.if_else(pc.equal(pc.binary_length(text), 0), pa.scalar(None, text.type), text)
    try:
        return text.cast(pa.float64())
    except pa.ArrowInvalid:
        text = _without_booleans(text)
    try:
        return text.cast(pa.float64())
    except pa.ArrowInvalid:
        row, value = next((i, v) for i, v in enumerate(text.to_pylist()) if not _is_number(v))
        raise place.error(f"{value[:_SHOWN]!r} is no number{_advice(value)}", row) from None


def _without_booleans(text: Any) -> Any:
    """Return the texts with the digit that each boolean stands for."""
    lower = pc.utf8_lower(text)
    for word, digit in (("true", "1"), ("false", "0")):
        text = pc.if_else(pc.equal(lower, word), pa.scalar(digit, text.type), text)
    return text


def _advice(value: str) -> str:
    """Say what helps if the text is one that others write for a missing value."""
    if value.lower() not in _NULLS:
        return ""
    return "; if it stands for a missing value, list it in a schema, [text] null"


def _as_string(array: Any, place: Place) -> Any:
    try:
        text = array.cast(pa.large_string())
        text.validate(full=True)
        return text
    except pa.ArrowInvalid:
        values = array.cast(pa.large_binary()).to_pylist()
        row = next(i for i, value in enumerate(values) if value and not _is_utf8(value))
        raise place.error("the text is not valid UTF-8", row) from None


def _is_utf8(value: bytes) -> bool:
    try:
        value.decode("utf-8")
        return True
    except UnicodeDecodeError:
        return False


def _is_number(value: str | None) -> bool:
    try:
        pa.scalar(value, pa.large_string()).cast(pa.float64())
        return True
    except pa.ArrowInvalid:
        return False
