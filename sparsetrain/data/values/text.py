# SPDX-License-Identifier: Apache-2.0
"""Bytes of Arrow's columns of text as NumPy arrays, and the check that they are UTF-8."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.types as pt

from sparsetrain.data.values.arrays import Array
from sparsetrain.data.values.location import Location


def as_bytes(array: Any) -> Any:
    """Return any text array (n,) as one whose bytes lie in one buffer: of views, a copy."""
    views = pt.is_string_view(array.type) or pt.is_binary_view(array.type)
    return array.cast(pa.large_binary()) if views else array


def lengths(array: Any) -> Array:
    """Return the bytes each value of a binary array (n,) has; 0 for nulls."""
    if not len(array):
        return np.zeros(0, dtype=np.int64)
    sizes = np.diff(text_offsets(array))
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


def bytes_of(array: Any) -> Array:
    """Return the bytes of all values of a binary array, one after the other, (n,) uint8."""
    if not len(array):
        return np.zeros(0, np.uint8)
    first, *_, end = text_offsets(array)
    return np.frombuffer(array.buffers()[2] or b"", np.uint8)[first:end]


def _is_utf8(value: bytes | None) -> bool:
    try:
        return value is None or bool(value.decode() or True)
    except UnicodeDecodeError:
        return False


def text_offsets(array: Any) -> Array:
    """Return where each of n > 0 values begins among the bytes, and the last ends, (n + 1,)."""
    large = pt.is_large_binary(array.type) or pt.is_large_string(array.type)
    wide = np.int64 if large else np.int32
    begin = array.offset * np.dtype(wide).itemsize
    return np.frombuffer(array.buffers()[1], dtype=wide, count=len(array) + 1, offset=begin)
