# SPDX-License-Identifier: Apache-2.0
"""Columns of a model from the body of an HTTP request, in JSON or as an Arrow stream.

Nothing in a body names code, a file or an address. A value must be a number, a text, a list of
these, or missing; the error for anything else names the field.
"""

from __future__ import annotations

import gc
import json
import struct
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from sparsetrain.errors import DataError, first_line
from sparsetrain.serving.column import DOUBLE, INT64, TEXT, Column, as_column, bad_column, seconds
from sparsetrain.serving.json_rows import read_rows
from sparsetrain.serving.limits import Most

ARROW = "application/vnd.apache.arrow.stream"
JSON = "application/json"
_DAMAGED = (ValueError, IndexError, OverflowError, struct.error)  # raised by wrong offsets
_OBJECT = 4  # least memory of a Python object, in array elements
_NUMBERS = 4096  # numbers formatted at once, while all threads wait


def from_json(body: bytes, names: Sequence[str], most: Most) -> dict[str, Column]:
    """Read ``{"rows": [{"user": 7, ...}, ...]}``; an absent key or null is a missing value.

    Raises
    ------
    TooLarge
        If the body exceeds `most`.
    DataError
        If the body has a different form.
    """
    with _no_collection():
        rows = read_rows(body, most._replace(values=most.values // _OBJECT))
        there = [name for name in names if any(name in row for row in rows)]
        try:
            return {name: as_column([row.get(name) for row in rows], name) for name in there}
        finally:
            while rows:  # freeing them all at once would also block all threads
                rows.pop()


@contextmanager
def _no_collection() -> Iterator[None]:
    """Turn off the garbage collector, which would traverse all rows again and again."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def from_arrow(body: bytes, names: Sequence[str], most: Most) -> dict[str, Column]:
    """Read an Arrow IPC stream.

    Raises
    ------
    TooLarge
        If the body exceeds `most`.
    DataError
        If the body is damaged, or a column has a type that encoders do not support.
    """
    import pyarrow as pa

    try:
        columns = _checked_columns(body, names, most)
    except (DataError, MemoryError):
        raise
    except (pa.ArrowException, OSError, *_DAMAGED) as error:
        raise DataError(f"the body is not an Arrow stream: {first_line(error)}") from None
    return {name: as_feature(array, name) for name, array in columns.items()}


def _checked_columns(body: bytes, names: Sequence[str], most: Most) -> dict[str, Any]:
    import pyarrow as pa

    from sparsetrain.serving import arrow_size

    arrow_size.require_stated(body, most)
    with pa.ipc.open_stream(body) as stream:
        schema = stream.schema
    places = [schema.get_field_index(name) for name in names]  # -1 if it is absent or ambiguous
    places = [place for place in places if place >= 0]
    for place in places:
        _require_feature(schema.field(place))
    if not places:
        return {}
    options = pa.ipc.IpcReadOptions(included_fields=places)
    with pa.ipc.open_stream(body, options=options) as stream:
        table = stream.read_all()
    table.validate()
    chunks = [chunk for column in table.columns for chunk in column.chunks]
    most.require(bytes=sum(map(arrow_size.bytes_of_text, chunks)))
    table.validate(full=True)
    return {name: table.column(name).combine_chunks() for name in table.schema.names}


def _require_feature(field: Any) -> None:
    """Refuse types that encoders do not support, before Arrow allocates memory."""
    from sparsetrain.data.values import arrow_types

    inside = arrow_types.element(field.type)
    if arrow_types.is_bag(inside):
        raise bad_column(field.name, "it holds lists of lists")
    if arrow_types.kind_of(inside) is None:
        raise bad_column(field.name, f"type {str(inside):.60} is not supported")


def as_feature(array: Any, name: str) -> Column:
    """Convert an Arrow array to a column as an `Encoder` would read it."""
    import pyarrow as pa
    import pyarrow.compute as pc
    import pyarrow.types as pt

    from sparsetrain.data.ragged import offsets_of
    from sparsetrain.data.values import arrow_types
    from sparsetrain.data.values.arrow_types import fill_nulls, require_utf8
    from sparsetrain.data.values.arrow_values import exact_integers
    from sparsetrain.data.values.location import Location
    from sparsetrain.data.values.moments import to_microseconds

    if arrow_types.is_bag(array.type):
        lengths = pc.fill_null(pc.list_value_length(array), 0).to_numpy()
        edges = offsets_of(lengths)
        return as_feature(array.flatten(), name).in_lists(edges)
    kind = arrow_types.kind_of(array.type)
    if pt.is_dictionary(array.type):
        values = array.dictionary  # Arrow cannot take from a dictionary of views
        values = values.cast(pa.large_binary()) if kind == arrow_types.TEXT else values
        array = values.take(array.indices)
    if kind == arrow_types.TEXT:
        require_utf8(array, Location("request", column=name))
        array = array.cast(pa.large_binary())
        missing = array.is_null().to_numpy(zero_copy_only=False).astype(np.uint8)
        # Arrow returns None for an empty buffer.
        edges = np.frombuffer(array.buffers()[1], np.int64, len(array) + 1, 8 * array.offset)
        text = np.frombuffer(array.buffers()[2] or b"\0", np.uint8)
        return Column(TEXT, text, edges, missing)
    if kind == arrow_types.MOMENT:
        return seconds(to_microseconds(array, Location("request", column=name)))
    values, missing = exact_integers(array) or fill_nulls(array)
    column = as_column(values, name)
    assert column.kind in (DOUBLE, INT64)
    return column._replace(missing=missing.astype(np.uint8))


def to_json(predictions: np.ndarray, labels: Sequence[str]) -> bytes:
    """Return ``{"predictions": [...]}``: per row a number, an object by label, or a vector."""
    step = max(1, _NUMBERS // (predictions.size // len(predictions)))
    parts = range(0, len(predictions), step)
    written = (_as_objects(predictions[begin : begin + step], labels) for begin in parts)
    return b'{"predictions": [' + ", ".join(written).encode() + b"]}"


def _as_objects(predictions: np.ndarray, labels: Sequence[str]) -> str:
    values: list[Any] = predictions.tolist()
    if len(labels) > 1:
        values = [dict(zip(labels, row, strict=True)) for row in values]
    return json.dumps(values)[1:-1]


def to_arrow(predictions: np.ndarray, labels: Sequence[str]) -> bytes:
    """Return a stream with a float32 column for each label, or one column of vectors."""
    import pyarrow as pa

    columns = predictions.reshape(len(predictions), -1).T
    made = {name: pa.array(column) for name, column in zip(labels, columns, strict=bool(labels))}
    if not labels:
        made["vector"] = pa.FixedSizeListArray.from_arrays(predictions.reshape(-1), len(columns))
    table = pa.table(made)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as stream:
        stream.write_table(table)
    written: bytes = sink.getvalue().to_pybytes()
    return written


READERS: Mapping[str, Any] = {JSON: (from_json, to_json), ARROW: (from_arrow, to_arrow)}
