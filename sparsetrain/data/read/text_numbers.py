# SPDX-License-Identifier: Apache-2.0
"""Columns of a block of text as the numbers that they spell, where all of a column does.

The numbers mean the same as the text: a key is the number that its text is, and a dense value or a
label has the same float64. Lines that are not plain enough (quotes, carriage returns, other numbers
of fields, texts for missing values), and columns that hold anything else, are left to Arrow.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from sparsetrain.data.read.text_blocks import Bytes, Dialect
from sparsetrain.data.values.arrays import Array
from sparsetrain.data.values.arrow_types import Spelled

LEAST_BYTES = 1 << 24  # for less, importing TVM takes as long as it saves


def read_numbers(
    data: Bytes, header: bool, dialect: Dialect, categories: Sequence[str]
) -> dict[str, Any]:
    """Return the columns of whole lines, of which the first may be a header, that spell numbers.

    Those of `categories` are `Spelled`, others int32.
    """
    delimiter, names = dialect.delimiter, dialect.names
    quoted = dialect.quoted and b'"' in data
    if len(data) < LEAST_BYTES or dialect.null or quoted or b"\r" in data or len(names) < 2:
        return {}
    from sparsetrain.parsing.fields import DECIMAL, EIGHT, HEX, TEXT, read_fields  # imports TVM

    data = data[data.index(b"\n") + 1 :] if header else data
    is_key = np.isin(names, categories)
    read = read_fields(data, delimiter, is_key) if delimiter.isascii() else None
    columns = {}
    for name, key, values, valid, found in zip(names, is_key, *read, strict=True) if read else ():
        # Of 8 digits the number is the hexadecimal one, so it must not be taken for another.
        if not (found & TEXT or (found & EIGHT and found & DECIMAL and key)):
            type_ = Spelled(bool(found & HEX), bool(found & EIGHT)) if key else pa.int32()
            columns[name] = _as_arrow(type_, values, valid)
    return columns


def _as_arrow(type_: Any, values: Array, valid: Array) -> Any:
    nulls = len(valid) - int(np.count_nonzero(valid))
    bitmap = pa.py_buffer(np.packbits(valid, bitorder="little")) if nulls else None
    storage = type_.storage_type if isinstance(type_, Spelled) else type_
    array = pa.Array.from_buffers(storage, len(values), [bitmap, pa.py_buffer(values)], nulls)
    return array if storage is type_ else pa.ExtensionArray.from_storage(type_, array)
