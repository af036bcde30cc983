# SPDX-License-Identifier: Apache-2.0
"""Arrow text columns as NumPy arrays: byte lengths, and hexadecimal digits parsed as numbers.

Most categories are 8 lower-case hex digits. All rows are parsed at once from the column's bytes: a
table lookup per digit, then three shift-and-or steps per value. Cost: about 10 ns a value, no
Python per row.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.types as pt

from sparsetrain.data.values.arrays import Array

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


def hex_numbers(array: Any, sizes: Array) -> tuple[Array, Array]:
    """Read the values of a binary array (n,) that are exactly 8 lower-case hex digits.

    `sizes` are their `lengths`. Returns the numbers (n,) int64, 0 where the value is something
    else, and which values are such numbers (n,) bool.
    """
    is_hex = sizes == _HEX_DIGITS
    if not is_hex.any():
        return np.zeros(len(array), dtype=np.int64), is_hex
    chosen = array if is_hex.all() else array.filter(pa.array(is_hex))
    parsed, valid = _parse(_contiguous(chosen))
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


def _contiguous(array: Any) -> Array:
    """Return the bytes of n values of 8 bytes each, none of them null, as (8 n,) uint8."""
    return np.frombuffer(
        array.buffers()[2], np.uint8, _HEX_DIGITS * len(array), int(_offsets(array)[0])
    )


def _parse(characters: Array) -> tuple[Array, Array]:
    """Return n numbers and which of them are valid, from (8 n,) uint8 characters."""
    x = np.take(_DIGIT, characters).view("<u8")
    valid = (x & np.uint64(0xF0F0F0F0F0F0F0F0)) == 0
    # The first digit is the lowest byte. Each step joins neighbours: 4 bits, then 8, then 16.
    for bits, mask in ((4, 0x00FF00FF00FF00FF), (8, 0x0000FFFF0000FFFF), (16, 0x00000000FFFFFFFF)):
        x = ((x << np.uint64(bits)) | (x >> np.uint64(2 * bits))) & np.uint64(mask)
    return x.view(np.int64), valid
