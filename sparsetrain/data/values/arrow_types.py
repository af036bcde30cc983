# SPDX-License-Identifier: Apache-2.0
"""Arrow types that columns may have, classified as integers, floats, text, timestamps or nulls.

All code that depends on a column's type uses this table, so support for a type is the same
everywhere. The module also reads lists as flat values and lengths, and nulls as a mask. It checks
two things that Arrow does not: the lengths of text views, and UTF-8.

Nulls are filled before NumPy sees a column: a null in an integer column would otherwise turn it
into floats. Arrow's `fill_null` takes 3 ns a value, since the processor mispredicts the branch at
each null; here a value's bits are multiplied by its validity bit, which takes 0.2 ns.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from sparsetrain.data.values.arrays import Array
from sparsetrain.data.values.location import Location, RowError

INTEGER, FLOAT, TEXT, EMPTY = "integers", "floats", "text", "nulls"
MOMENT = "timestamps"  # and dates
DIGITS = "text of digits"


class Digits(pa.ExtensionType):
    """Texts of digits, stored as their numbers (uint32).

    Attributes
    ----------
    base : {10, 16}
        With 16, all texts are 8 lower-case hex digits; with 10, canonical decimal integers.
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


# Types with a bag of ids per row, including lists of fixed size.
_BAGS = (pt.is_list, pt.is_large_list, pt.is_fixed_size_list)


def is_bag(type_: pa.DataType) -> bool:
    """Return whether a column of this Arrow type holds a list of values in each row."""
    return any(test(type_) for test in _BAGS)


def element(type_: pa.DataType) -> pa.DataType:
    """Return the type of a list's values; return any other type unchanged."""
    return type_.value_type if is_bag(type_) else type_


def is_unsigned(type_: pa.DataType) -> bool:
    """Return whether a column, or its lists, may hold integers beyond int64."""
    type_ = element(type_)
    return bool(pt.is_uint64(type_.value_type if pt.is_dictionary(type_) else type_))


def kind_of(type_: pa.DataType) -> str | None:
    """Return the kind of an Arrow type, or of a dictionary's values; None if unsupported."""
    if pt.is_dictionary(type_):
        type_ = type_.value_type
    return next((kind for test, kind in _KINDS if test(type_)), None)


def as_plain(array: Any) -> Any:
    """Decode a dictionary-encoded array; return any other array unchanged."""
    return array.dictionary_decode() if pt.is_dictionary(array.type) else array


def has_views(type_: pa.DataType) -> bool:
    """Return whether a type stores text as views, also inside lists and polars' dictionaries."""
    while is_bag(type_):
        type_ = type_.value_type
    text = type_.value_type if pt.is_dictionary(type_) else type_
    return bool(pt.is_string_view(text) or pt.is_binary_view(text))


def without_views(array: Any) -> Any:
    """Convert text views to plain text, since Arrow can neither filter nor take views."""
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
    """Return the length of each text view, also inside lists and dictionaries, as (n,) int64.

    Arrow does not check the lengths of null views, but its casts sum them, and a negative length
    crashes the process.
    """
    inside = array
    while is_bag(inside.type):
        inside = inside.values
    inside = inside.dictionary if pt.is_dictionary(inside.type) else inside
    if not (len(inside) and has_views(inside.type)):
        return np.zeros(0, np.int64)
    views = np.frombuffer(
        inside.buffers()[1], "<i4"
    )  # a view is four numbers; the first is the length
    return views[4 * inside.offset : 4 * (inside.offset + len(inside)) : 4].astype(np.int64)


def require_utf8(array: Any, location: Location, *, bytes_too: bool = False) -> None:
    """Refuse text (n,) that is not UTF-8, also in a dictionary; `bytes_too` checks bytes as well.

    Arrow does not check this when it reads parquet.
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
    location.refuse(
        bad, lambda row: "the text is not UTF-8; encode it as UTF-8, or read it as bytes"
    )


def _is_utf8(value: bytes | None) -> bool:
    try:
        return value is None or bool(value.decode() or True)
    except UnicodeDecodeError:
        return False


def fill_nulls(array: Any) -> tuple[Array, Array]:
    """Return values (n,) of the array's own type, 0 where null, and a mask (n,) of nulls.

    Parameters
    ----------
    array : pyarrow array (n,) of integers, floats, decimals, booleans or nulls
        Booleans become int8; decimals, and arrays of the null type, become float64.
    """
    if pt.is_boolean(array.type) or pt.is_null(array.type) or pt.is_decimal(array.type):
        array = array.cast(pa.int8() if pt.is_boolean(array.type) else pa.float64())
    if not array.null_count:
        return array.to_numpy(), np.zeros(len(array), dtype=bool)
    valid, values = _validity(array), _stored(array)
    bits = values.view(f"u{values.itemsize}")
    return (bits * valid).view(values.dtype), valid == 0


def _validity(array: Any) -> Array:
    """Return 1 for each value and 0 for each null, (n,) uint8."""
    skipped = array.offset % 8
    mask = np.frombuffer(array.buffers()[0], np.uint8, offset=array.offset // 8)
    return np.unpackbits(mask, count=skipped + len(array), bitorder="little")[skipped:]


def _stored(array: Any) -> Array:
    """Return the values without a copy; where null, they are arbitrary."""
    dtype = np.dtype(array.type.to_pandas_dtype())
    begin = array.offset * dtype.itemsize
    return np.frombuffer(array.buffers()[1], dtype, len(array), begin)


Read = TypeVar("Read")


def read_values(
    array: Any, read: Callable[[Any, Location], Read], location: Location
) -> tuple[Read, Array]:
    """Return `read` of the flat values of all bags, and the number of values in each row.

    If `read` raises an error about a value, the error gets the row of the value's bag.
    """
    values, lengths = flat(array)
    if values is array:
        return read(array, location), lengths
    try:
        numbers = np.repeat(location.row_numbers(len(lengths)), lengths)
        return read(values, location.numbered(numbers)), lengths
    except RowError as error:
        if error.row is not None:
            error.row = int(np.searchsorted(np.cumsum(lengths), error.row, side="right"))
        raise


def flat(array: Any) -> tuple[Any, Array]:
    """Return the concatenated values of all bags, and the size of each."""
    if not is_bag(array.type):
        return array, np.ones(len(array), dtype=np.int64)
    lengths = pc.fill_null(pc.list_value_length(array), 0).to_numpy().astype(np.int64)
    return array.flatten(), lengths
