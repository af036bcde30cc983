# SPDX-License-Identifier: Apache-2.0
"""Bodies of HTTP requests as columns of a model, in JSON and as an Arrow stream.

Nothing in a body names code, a file or an address; what is not a number, a text, a list of them or
missing is an error that names the field.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from sparsetrain.errors import DataError, first_line
from sparsetrain.serving.model import DOUBLE, INT64, TEXT, Column, as_column

ARROW = "application/vnd.apache.arrow.stream"
JSON = "application/json"


def from_json(body: bytes, names: Sequence[str]) -> dict[str, Column]:
    """Read ``{"rows": [{"user": 7, ...}, ...]}``: an absent key, or null, is missing.

    Raises
    ------
    DataError
        If it is something else.
    """
    try:
        read = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise DataError(f"the body is not JSON: {first_line(error)}") from None
    rows = read.get("rows") if isinstance(read, dict) else None
    if not isinstance(rows, list) or not rows:
        raise DataError('rows: give {"rows": [{"column": value, ...}, ...]}, at least one row')
    for number, row in enumerate(rows):
        if not isinstance(row, dict):
            raise DataError(f"row {number}: it is not an object of columns and values")
    there = [name for name in names if any(name in row for row in rows)]
    return {name: as_column([row.get(name) for row in rows], name) for name in there}


def from_arrow(body: bytes, names: Sequence[str]) -> dict[str, Column]:
    """Read an Arrow IPC stream.

    Raises
    ------
    DataError
        If it is damaged, or a column has a type that no encoder reads.
    """
    import pyarrow as pa

    try:
        with pa.ipc.open_stream(body) as stream:
            table = stream.read_all()
        table.validate(full=True)
    except (pa.ArrowException, OSError, ValueError) as error:
        raise DataError(f"the body is not an Arrow stream: {first_line(error)}") from None
    return {
        name: _from_arrow(table.column(name).combine_chunks(), name)
        for name in names
        if table.schema.names.count(name) == 1
    }


def _from_arrow(array: Any, name: str) -> Column:
    """One column, read as an `Encoder` reads it."""
    import pyarrow as pa
    import pyarrow.compute as pc
    import pyarrow.types as pt

    from sparsetrain.data.values import arrow_types
    from sparsetrain.data.values.location import Location
    from sparsetrain.data.values.numeric import exact_integers, fill_nulls, to_microseconds
    from sparsetrain.data.values.text import require_utf8

    if arrow_types.is_bag(array.type):
        lengths = pc.fill_null(pc.list_value_length(array), 0).to_numpy()
        edges = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
        return _from_arrow(array.flatten(), name)._replace(bags=edges)
    array = arrow_types.without_views(array)
    if pt.is_dictionary(array.type):
        array = array.dictionary_decode()
    kind = arrow_types.kind_of(array.type)
    if kind == arrow_types.TEXT:
        require_utf8(array, Location(name))
        array = array.cast(pa.large_binary())
        missing = array.is_null().to_numpy(zero_copy_only=False).astype(np.uint8)
        # A buffer without bytes is none.
        edges = np.frombuffer(array.buffers()[1], np.int64, len(array) + 1, 8 * array.offset)
        text = np.frombuffer(array.buffers()[2] or b"\0", np.uint8)
        return Column(TEXT, text, edges, missing)
    if kind in (None, arrow_types.MOMENT):
        moments = to_microseconds(array, Location("request", column=name))
        if moments is None:
            raise DataError(f"column {name}: a column of {array.type} is not a feature")
        microseconds, missing = fill_nulls(moments)
        values = microseconds // 1_000_000
    else:
        values, missing = exact_integers(array) or fill_nulls(array)
    column = as_column(values, name)
    assert column.kind in (DOUBLE, INT64)
    return column._replace(missing=missing.astype(np.uint8))


def to_json(predictions: np.ndarray, labels: Sequence[str]) -> bytes:
    """Return ``{"predictions": [...]}``: an object for each row of several labels, or a vector."""
    values: list[Any] = predictions.tolist()
    if len(labels) > 1:
        values = [dict(zip(labels, row, strict=True)) for row in values]
    return json.dumps({"predictions": values}).encode()


def to_arrow(predictions: np.ndarray, labels: Sequence[str]) -> bytes:
    """Return a stream with a column of float32 for each label, or one of vectors."""
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
