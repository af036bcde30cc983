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

from sparsetrain.data.read.text_blocks import NEWLINE, Block, Dialect
from sparsetrain.data.values.arrays import Array
from sparsetrain.data.values.arrow_types import Spelled

LEAST_BYTES = 1 << 24  # of a file's first block; for less, importing TVM takes as long as it saves


def read_numbers(block: Block, dialect: Dialect, categories: Sequence[str]) -> dict[str, Any]:
    """Return the columns that spell numbers: those of `categories` are `Spelled`, others int32."""
    data, lines, names, is_first = block.data, block.lines, dialect.names, block.first_line == 1
    is_plain = not dialect.null and len(names) > 1 and "\0" < dialect.delimiter < "\x80"
    if not is_plain or (is_first and len(data) < LEAST_BYTES):
        return {}
    from sparsetrain.parsing.fields import DECIMAL, EIGHT, HEX, TEXT, read_fields  # imports TVM

    if dialect.header and is_first:
        data, lines = data[int(np.argmax(data == NEWLINE)) + 1 :], lines - 1
    is_key = np.isin(names, categories)
    read = read_fields(data, lines, dialect.delimiter, dialect.quoted, is_key)
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
