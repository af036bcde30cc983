# SPDX-License-Identifier: Apache-2.0
"""Sizes that an Arrow stream states in its messages, read before Arrow allocates memory.

A column of nulls has no bytes for any length, and 16 kB of zstd may expand to gigabytes. Each
message states its rows, the length of each array and the size of each compressed buffer. pyarrow
does not expose these flatbuffers, so this module reads them, after Arrow has verified them.

References
----------
https://arrow.apache.org/docs/format/Columnar.html#serialization-and-interprocess-communication-ipc
"""

from __future__ import annotations

import struct
from typing import Any

import numpy as np
import pyarrow as pa

from sparsetrain.data.values import arrow_types
from sparsetrain.errors import DataError
from sparsetrain.serving.limits import Most

_DICTIONARY, _RECORDS = 2, 3  # kinds of a message
_KIND, _HEADER, _DATA = 1, 2, 1  # fields: two of a message, one of a dictionary
_LENGTH, _NODES, _BUFFERS, _COMPRESSION = range(4)  # fields of a record batch


def require_stated(body: bytes, most: Most) -> None:
    """Check the rows, values and bytes that a stream states.

    Raises
    ------
    TooLarge
        If the stream states more than `most`.
    """
    rows = values = size = 0
    for message in pa.ipc.MessageReader.open_stream(body):
        data = memoryview(message.metadata)
        table = _follow(data, 0)
        kind = _field(data, table, _KIND)
        if not kind or data[kind] not in (_DICTIONARY, _RECORDS):
            continue
        batch = _follow(data, _field(data, table, _HEADER))
        if data[kind] == _DICTIONARY:
            batch = _follow(data, _field(data, batch, _DATA))
        elif at := _field(data, batch, _LENGTH):
            rows += struct.unpack_from("<Q", data, at)[0]  # negative counts become large
        values += int(_pairs(data, batch, _NODES)[:, 0].astype(object).sum())
        size += len(message.body or b"")
        if _field(data, batch, _COMPRESSION):
            size += _decompressed(message.body, _pairs(data, batch, _BUFFERS))
        most.require(rows=rows, values=values, bytes=size)


def _follow(data: memoryview, at: int) -> int:
    return at + int(struct.unpack_from("<I", data, at)[0])


def _field(data: memoryview, table: int, number: int) -> int:
    """Return the position of a field of a flatbuffer table; 0 if it is absent."""
    fields = table - struct.unpack_from("<i", data, table)[0]
    at = 4 + 2 * number
    if at >= struct.unpack_from("<H", data, fields)[0]:
        return 0
    offset: int = struct.unpack_from("<H", data, fields + at)[0]
    return table + offset if offset else 0


def _pairs(data: memoryview, table: int, number: int) -> Any:
    """Return a field that is a vector of pairs of 64-bit numbers, (n, 2)."""
    at = _field(data, table, number)
    if not at:
        return np.zeros((0, 2), np.uint64)
    begin = _follow(data, at)
    count: int = struct.unpack_from("<I", data, begin)[0]
    return np.frombuffer(data, "<u8", 2 * count, begin + 4).reshape(-1, 2)


def _decompressed(body: Any, buffers: Any) -> int:
    """Return the decompressed bytes of all buffers; -1 marks a buffer that is not compressed."""
    begins = (int(begin) for begin, length in buffers if length >= 8)
    return sum(max(0, struct.unpack_from("<q", body, begin)[0]) for begin in begins)


def bytes_of_text(array: Any) -> int:
    """Count the bytes that text would take if no two rows shared memory.

    Raises
    ------
    DataError
        If a text has a negative length.
    """
    lengths = arrow_types.view_lengths(array)
    if (lengths < 0).any():
        raise DataError("a text has a negative length")
    while arrow_types.is_bag(array.type):
        array = array.values
    if not (isinstance(array, pa.DictionaryArray) and len(array.dictionary)):
        return int(lengths.sum())
    if arrow_types.kind_of(array.type) != arrow_types.TEXT:
        return 0
    array.validate(full=True)  # checks its indices
    texts = array.dictionary.cast(pa.large_binary())
    lengths = np.diff(np.frombuffer(texts.buffers()[1], np.int64, len(texts) + 1))
    return int(lengths[array.indices.fill_null(0).to_numpy()].sum())
