# SPDX-License-Identifier: Apache-2.0
"""Arrow types that columns may have, classified as integers, floats, text, timestamps or nulls.

All code that depends on a column's type uses this table, so a type is accepted or refused
everywhere alike. Beside it is the check of texts that Arrow leaves out: of views, and of UTF-8.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.types as pt

from sparsetrain.data.values.location import Location

INTEGER, FLOAT, TEXT, EMPTY = "integers", "floats", "text", "nulls"
MOMENT = "timestamps"  # dates too
DIGITS = "text of digits"


class Digits(pa.ExtensionType):
    """Text of digits, kept as the numbers (uint32) that it spells.

    Attributes
    ----------
    base : {10, 16}
        Of 16, all texts are 8 lower-case hex digits; of 10, all are written as integers are.
    """

    def __init__(self, base: int) -> None:
        self.base = base
        super().__init__(pa.uint32(), "sparsetrain.digits")

    def __arrow_ext_serialize__(self) -> bytes:
        return bytes([self.base])

    @classmethod
    def __arrow_ext_deserialize__(cls, storage: pa.DataType, serialized: bytes) -> Digits:
        return cls(*serialized)


# Older versions of Spark and Hive write text as binary columns without an annotation.
_KINDS: tuple[tuple[Callable[[pa.DataType], bool], str], ...] = (
    (lambda type_: isinstance(type_, Digits), DIGITS),
    (pt.is_integer, INTEGER),
    (pt.is_boolean, INTEGER),
    (pt.is_floating, FLOAT),
    (pt.is_decimal, FLOAT),
    (pt.is_string, TEXT),
    (pt.is_large_string, TEXT),
    (pt.is_string_view, TEXT),
    (pt.is_binary, TEXT),
    (pt.is_large_binary, TEXT),
    (pt.is_binary_view, TEXT),
    (pt.is_null, EMPTY),
    (pt.is_timestamp, MOMENT),
    (pt.is_date, MOMENT),
)


# A bag of ids in each row. A fixed size is a list too.
_BAGS = (pt.is_list, pt.is_large_list, pt.is_fixed_size_list)


def is_bag(type_: pa.DataType) -> bool:
    """Return whether a column of this Arrow type holds a list of values in each row."""
    return any(test(type_) for test in _BAGS)


def element(type_: pa.DataType) -> pa.DataType:
    """Return the type of a list's values, any other type as it is."""
    return type_.value_type if is_bag(type_) else type_


def is_unsigned(type_: pa.DataType) -> bool:
    """Return whether a column, or its lists, may hold integers that int64 does not."""
    type_ = element(type_)
    return bool(pt.is_uint64(type_.value_type if pt.is_dictionary(type_) else type_))


def kind_of(type_: pa.DataType) -> str | None:
    """Return the kind of an Arrow type, a dictionary's being its values'; None if not usable."""
    if pt.is_dictionary(type_):
        type_ = type_.value_type
    return next((kind for test, kind in _KINDS if test(type_)), None)


def as_plain(array: Any) -> Any:
    """Return an array that is no dictionary."""
    return array.dictionary_decode() if pt.is_dictionary(array.type) else array


def has_views(type_: pa.DataType) -> bool:
    """Return whether text of this type is views, in lists and in polars' dictionaries too."""
    while is_bag(type_):
        type_ = type_.value_type
    text = type_.value_type if pt.is_dictionary(type_) else type_
    return bool(pt.is_string_view(text) or pt.is_binary_view(text))


def without_views(array: Any) -> Any:
    """Return an array of plain text if it is of views, which Arrow can neither filter nor take."""
    inside = element(array.type)
    if is_bag(inside) or not has_views(inside):  # lists of lists are refused by their type
        return array
    text = inside.value_type if pt.is_dictionary(inside) else inside
    plain: Any = pa.large_string() if pt.is_string_view(text) else pa.large_binary()
    if pt.is_dictionary(inside):
        plain = pa.dictionary(inside.index_type, plain)
    if pt.is_fixed_size_list(array.type):
        plain = pa.list_(plain, array.type.list_size)
    elif is_bag(array.type):
        plain = pa.large_list(plain) if pt.is_large_list(array.type) else pa.list_(plain)
    return array.cast(plain)


def view_lengths(array: Any) -> np.ndarray:
    """Return the bytes of each text of views, in lists and dictionaries too, as (n,) int64.

    Arrow checks none under a null, yet its casts add them all: one below 0 ends the process.
    """
    inside = array
    while is_bag(inside.type):
        inside = inside.values
    inside = inside.dictionary if pt.is_dictionary(inside.type) else inside
    if not (len(inside) and has_views(inside.type)):
        return np.zeros(0, np.int64)
    views = np.frombuffer(inside.buffers()[1], "<i4")  # of four each, the first its length
    return views[4 * inside.offset : 4 * (inside.offset + len(inside)) : 4].astype(np.int64)


def require_utf8(array: Any, location: Location, *, bytes_too: bool = False) -> None:
    """Refuse text (n,), as a dictionary or not, that is not UTF-8; columns of bytes only if asked.

    Arrow looks at no byte of it when it reads parquet.
    """
    is_coded = pt.is_dictionary(array.type)
    texts = array.dictionary if is_coded else array
    type_ = texts.type
    is_text = pt.is_string(type_) or pt.is_large_string(type_) or pt.is_string_view(type_)
    if not (is_text or bytes_too) or not len(texts):
        return
    try:  # all at once, which takes 10 ns a value
        (texts if is_text else texts.cast(pa.large_string(), safe=False)).validate(full=True)
        return
    except pa.ArrowInvalid:
        pass
    bad = np.array([not _is_utf8(value) for value in texts.cast(pa.large_binary()).to_pylist()])
    if is_coded and bad.any():
        codes = array.indices.cast(pa.int64()).fill_null(len(bad)).to_numpy()
        bad = np.append(bad, False)[codes]
    location.refuse(bad, lambda row: "the text is not UTF-8; write it so, or read it as bytes")


def _is_utf8(value: bytes | None) -> bool:
    try:
        return value is None or bool(value.decode() or True)
    except UnicodeDecodeError:
        return False
