# SPDX-License-Identifier: Apache-2.0
"""Checksums of columns, which depend on the values and not on their layout in memory."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from sparsetrain.data.values.arrays import Array
from sparsetrain.data.values.arrow_types import TEXT, is_bag, kind_of, without_views
from sparsetrain.data.values.arrow_values import texts_of


def crc32_of(column: Any, found: int = 0) -> int:
    """Return the checksum `found`, continued over a column (chunked or not) of any type."""
    array = pa.concat_arrays(column.chunks) if isinstance(column, pa.ChunkedArray) else column
    found = zlib.crc32(str(array.type).encode(), found)
    for part in _parts(without_views(array)):
        found = zlib.crc32(np.ascontiguousarray(part).view(np.uint8).data, found)
    return found


def _parts(array: Any) -> Iterator[Array]:
    """Yield arrays with an array's content, but not the memory under nulls, which is arbitrary."""
    if pt.is_dictionary(array.type):  # a dictionary may repeat values, in any order
        array = without_views(array.dictionary_decode())
    yield array.is_valid().to_numpy(zero_copy_only=False)
    array = array.drop_null()
    if is_bag(array.type):
        yield pc.list_value_length(array).to_numpy()
        yield from _parts(array.flatten())
    elif kind_of(array.type) == TEXT:
        texts = texts_of(array)
        yield np.diff(texts.offsets)
        yield texts.data
    elif pt.is_primitive(array.type):
        yield array.to_numpy(zero_copy_only=False)
    else:  # decimal numbers
        yield from _parts(array.cast(pa.large_string()))
