# SPDX-License-Identifier: Apache-2.0
"""Arrow text columns as NumPy arrays: byte lengths, and digits parsed as numbers.

Most categories are 8 lower-case hex digits. All rows are parsed at once from the column's bytes: a
table lookup per digit, then three shift-and-or steps per value. Cost: about 10 ns a value, no
Python per row. Decimal numbers cost about 100 ns a value.
"""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from sparsetrain.data.values.arrays import Array
from sparsetrain.data.values.location import Location

_HEX_DIGITS = 8
_NO_DIGIT = 255  # its high bits tell it from a digit
_DIGIT = np.full(256, _NO_DIGIT, dtype=np.uint8)
_DIGIT[ord("0") : ord("9") + 1] = np.arange(10)
_DIGIT[ord("a") : ord("f") + 1] = np.arange(10, 16)


def as_bytes(array: Any) -> Any:
    """Return any text array as `binary` or `large_binary`, whose bytes lie in one buffer."""
    large = pt.is_large_string(array.type) or pt.is_large_binary(array.type)
    return array.cast(pa.large_binary() if large else pa.binary())


def lengths(array: Any) -> Array:
    """Return the bytes each value of a binary array (n,) has; 0 for nulls."""
    if not len(array):
        return np.zeros(0, dtype=np.int64)
    sizes = np.diff(_offsets(array))
    if array.null_count:
        sizes[array.is_null().to_numpy(zero_copy_only=False)] = 0
    return sizes


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
    if bytes_of(as_bytes(texts)).max(initial=0) < 128:  # ASCII
        return
    bad = np.array([not _is_utf8(value) for value in texts.cast(pa.large_binary()).to_pylist()])
    if is_coded and bad.any():
        codes = array.indices.fill_null(len(bad)).cast(pa.int64()).to_numpy()
        bad = np.append(bad, False)[codes]
    location.refuse(bad, lambda row: "the text is not UTF-8; write it so, or read it as bytes")


def bytes_of(array: Any) -> Array:
    """Return the bytes of all values of a binary array, one after the other, (n,) uint8."""
    if not len(array):
        return np.zeros(0, np.uint8)
    first, *_, end = _offsets(array)
    return np.frombuffer(array.buffers()[2] or b"", np.uint8)[first:end]


def _is_utf8(value: bytes | None) -> bool:
    try:
        return value is None or bool(value.decode() or True)
    except UnicodeDecodeError:
        return False


def hex_numbers(array: Any, sizes: Array) -> tuple[Array, Array]:
    """Read the values of a binary array (n,) that are exactly 8 lower-case hex digits.

    `sizes` are their `lengths`. Returns the numbers (n,) int64, 0 where the value is something
    else, and which values are such numbers (n,) bool.
    """
    is_hex = sizes == _HEX_DIGITS
    if not is_hex.any():
        return np.zeros(len(array), dtype=np.int64), is_hex
    chosen = array if is_hex.all() else array.filter(pa.array(is_hex))
    begin, size = int(_offsets(chosen)[0]), _HEX_DIGITS * len(chosen)  # of which none is null
    parsed, valid = _parse(np.frombuffer(chosen.buffers()[2], np.uint8, size, begin))
    if valid.all() and chosen is array:
        return parsed, is_hex
    numbers = np.zeros(len(array), dtype=np.int64)
    numbers[is_hex] = np.where(valid, parsed, 0)
    is_hex[is_hex] = valid
    return numbers, is_hex


def _offsets(array: Any) -> Array:
    """Return where each of n > 0 values begins among the bytes, and the last ends, (n + 1,)."""
    wide = np.int64 if pt.is_large_binary(array.type) else np.int32
    begin = array.offset * np.dtype(wide).itemsize
    return np.frombuffer(array.buffers()[1], dtype=wide, count=len(array) + 1, offset=begin)


def _parse(characters: Array) -> tuple[Array, Array]:
    """Return n numbers and which of them are valid, from (8 n,) uint8 characters."""
    x = np.take(_DIGIT, characters).view("<u8")
    valid = (x & np.uint64(0xF0F0F0F0F0F0F0F0)) == 0
    # The first digit is the lowest byte. Each step joins neighbours: 4 bits, then 8, then 16.
    for bits, mask in ((4, 0x00FF00FF00FF00FF), (8, 0x0000FFFF0000FFFF), (16, 0x00000000FFFFFFFF)):
        x = ((x << np.uint64(bits)) | (x >> np.uint64(2 * bits))) & np.uint64(mask)
    return x.view(np.int64), valid


def are_eights(hexes: Array) -> Array:
    """Return which of (n,) numbers of 8 hex digits are also spelled like a decimal number."""
    letters = (hexes >> 3) & ((hexes >> 2) | (hexes >> 1)) & 0x11111111
    return (letters == 0) & (hexes >= 0x10000000)


def as_decimals(hexes: Array) -> Array:
    """Return what the digits of `are_eights` say as decimal numbers, (n,) int64."""
    places = range(_HEX_DIGITS)
    return sum(((hexes >> 4 * i) & 15) * 10**i for i in places)


# What Python and Arrow write of a 64-bit integer, and what stands for a boolean.
_WHOLE = r"^(0|-?[1-9][0-9]{0,18}|[1-9][0-9]{19})$"
_BOOLEANS = (b"false", b"False", b"FALSE", b"true", b"True", b"TRUE")
_FIRST = np.isin(np.arange(256), list(b"-0123456789fFtT"))


def whole_numbers(array: Any, sizes: Array, chosen: Array) -> tuple[Array, Array]:
    """Read the values of a binary array (n,) that spell a whole number as integers are written.

    So `-12` and `0`, not `012` or `1.0`; `true` and `false` are 1 and 0. Looks at none but `chosen`
    (n,) bool. Returns the numbers (n,) int64 (uint64 by its bits), 0 elsewhere, and which are such.
    """
    numbers = np.zeros(len(array), dtype=np.int64)
    is_whole = chosen & (sizes > 0) & (sizes <= 20)
    if is_whole.any():
        characters = np.frombuffer(array.buffers()[2], np.uint8)
        is_whole[is_whole] = _FIRST[characters[_offsets(array)[:-1][is_whole]]]
    if not is_whole.any():
        return numbers, is_whole
    texts = array.filter(pa.array(is_whole)).cast(pa.large_binary())
    digits = pc.match_substring_regex(texts, _WHOLE)
    found = pc.index_in(texts, pa.array(_BOOLEANS, pa.large_binary()))
    values = pc.cast(pc.greater_equal(found, len(_BOOLEANS) // 2), pa.int64()).fill_null(0)
    parsed = _integers(texts.filter(digits).cast(pa.large_string(), safe=False))
    values = values.to_numpy().copy()
    is_digits = digits.to_numpy(zero_copy_only=False)
    values[is_digits], fits = parsed
    valid = found.is_valid().to_numpy(zero_copy_only=False)
    valid[is_digits] = fits
    numbers[is_whole] = np.where(valid, values, 0)
    is_whole[is_whole] = valid
    return numbers, is_whole


def _integers(texts: Any) -> tuple[Array, Array]:
    """Return texts of digits as (n,) int64, and which of them fit 64 bits."""
    for type_ in (pa.int64(), pa.uint64()):
        try:
            return texts.cast(type_).to_numpy().view(np.int64), np.ones(len(texts), dtype=bool)
        except pa.ArrowInvalid:
            continue
    numbers = [int(text) for text in texts.to_pylist()]
    fits = np.array([-(2**63) <= number < 2**64 for number in numbers])
    return np.array([number % 2**64 for number in numbers], np.uint64).view(np.int64), fits


_IS_HEX, _IS_WHOLE = re.compile(r"[0-9a-f]{8}").fullmatch, re.compile(_WHOLE).match


def spelled_number(text: str) -> tuple[int | None, int | None]:
    """Return the number that one text spells as 8 hex digits, and as a decimal number or boolean.

    As `hex_numbers` and `whole_numbers` do, of many; None where it spells none.
    """
    hexadecimal = int(text, 16) if _IS_HEX(text) else None
    if hexadecimal is not None and (text[0] == "0" or not text.isdecimal()):
        return hexadecimal, None
    if _IS_WHOLE(text) and not text.endswith("\n") and -(2**63) <= int(text) < 2**64:
        return hexadecimal, (int(text) + 2**63) % 2**64 - 2**63
    word = text.encode()
    return None, _BOOLEANS.index(word) // 3 if word in _BOOLEANS else None
