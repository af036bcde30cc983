# SPDX-License-Identifier: Apache-2.0
"""Sources that read tables in memory and streams of record batches.

A table is split into slices that share its memory. Only columns that may be used are converted;
other columns of a frame may hold anything.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.types as pt

from sparsetrain.data.read.source import PIECE_ROWS, Part, Pieces, Source, located
from sparsetrain.data.schema.columns import is_numbered, require_column, require_columns
from sparsetrain.data.schema.schema import Schema
from sparsetrain.data.values.arrow_types import EMPTY, FLOAT, INTEGER, element, is_bag, kind_of
from sparsetrain.data.values.location import Location, RowError
from sparsetrain.errors import DataError, SparsetrainError, first_line

_PART_ROWS = 4 * PIECE_ROWS
_BATCHES = Location("record batches")
_REASON = 300  # most characters of a library's error in a message


def table_source(data: Any, schema: Schema, optional: Collection[str] = ()) -> Source | None:
    """Return a source over an Arrow table or stream, a DataFrame or a dict of arrays, else None."""
    if isinstance(data, pa.RecordBatchReader):
        return Source(_BATCHES.name, (_stream(data),))
    with foreign_errors("stream"):
        streamed = _restartable(data)
    if streamed is not None:
        location = Location("stream")
        read = partial(_read_on, streamed[1], location)
        return Source(location.name, (Part(location, streamed[0], None, read),))
    table = as_table(data, schema, optional)
    return None if table is None else Source("table", tuple(table_parts(table)))


@contextmanager
def foreign_errors(name: str, rows: int = 0) -> Iterator[None]:
    """Raise any error of a user's reader as a `DataError` that names the number of rows read."""
    try:
        yield
    except (SparsetrainError, MemoryError):
        raise
    except Exception as error:
        reason = " ".join(str(error).split())[:_REASON] or type(error).__name__
        after = f"after {rows:,} rows: " if rows else ""
        raise DataError(f"{name}: {after}cannot be read ({reason})") from error


def _read_on(read: Any, start: Location, names: Sequence[str], coded: Sequence[str]) -> Pieces:
    """Yield the pieces of a library's reader; raise its errors as `DataError`."""
    pieces, rows = read(names), 0
    while True:
        with foreign_errors(start.name, rows):
            piece = next(pieces, None)
        if piece is None:
            return
        yield start.moved(rows), piece
        rows += piece.num_rows


def _restartable(data: Any) -> tuple[pa.Schema, Any] | None:
    """Return schema and reader of data that are read piece by piece in each epoch.

    These are pyarrow datasets, DuckDB relations and streamed Hugging Face data sets.
    """
    if _is_of("datasets", data) and hasattr(data, "with_format") and not hasattr(data, "num_rows"):
        streamed = data.with_format("arrow")
        known = data.features.arrow_schema if data.features else _first(streamed).schema
        return known, partial(_iterate, streamed, known)
    if type(data).__module__ == "pyarrow._dataset" and hasattr(data, "scanner"):
        return data.schema, partial(_scan, data)
    if not (_is_of("duckdb", data) or _is_of("_duckdb", data)):
        return None
    if not hasattr(data, "__arrow_c_stream__"):
        return None
    return pa.RecordBatchReader.from_stream(data).schema, partial(_run, data)


def _scan(data: Any, names: Sequence[str]) -> Iterator[pa.RecordBatch]:
    scanner = data.scanner(columns=list(names), batch_size=PIECE_ROWS, fragment_readahead=1)
    yield from scanner.to_batches()


def _first(streamed: Any) -> pa.Table:
    """Return the first rows, to infer types; a single row might have missing values."""
    for table in streamed.iter(PIECE_ROWS):
        return table
    raise DataError("stream: no rows")


def _iterate(streamed: Any, known: pa.Schema, names: Sequence[str]) -> Iterator[pa.RecordBatch]:
    for table in streamed.iter(PIECE_ROWS):
        columns = {name: _of_kind(table, known.field(name)) for name in names}
        yield from pa.table(columns).to_batches()


def _of_kind(table: pa.Table, known: pa.Field) -> Any:
    """Return a column, nulls if it is absent; refuse values of a different kind than before."""
    if known.name not in table.column_names or pt.is_null(table.field(known.name).type):
        return pa.nulls(len(table), known.type)
    column = table.column(known.name)
    kinds = [kind_of(element(type_)) for type_ in (column.type, known.type)]
    alike = kinds[0] == kinds[1] or kinds[1] == EMPTY or {*kinds} == {INTEGER, FLOAT}
    if not alike or is_bag(column.type) != is_bag(known.type):
        found, before = (
            f"{'lists of ' * is_bag(type_)}{kind_of(element(type_)) or type_}"
            for type_ in (column.type, known.type)
        )
        raise Location("stream", column=known.name).error(
            f"holds {found}, in earlier rows {before}; set its type with cast_column"
        )
    return column


def _run(data: Any, names: Sequence[str]) -> Iterator[pa.RecordBatch]:
    for batch in pa.RecordBatchReader.from_stream(data):
        yield from _pieces(batch, names)


def _pieces(batch: pa.RecordBatch, names: Sequence[str]) -> Iterator[pa.RecordBatch]:
    for first in range(0, batch.num_rows, PIECE_ROWS):
        yield batch.select(list(names)).slice(first, PIECE_ROWS)


def is_table(data: Any) -> bool:
    """Return whether `data` is an Arrow table, record batches or a frame."""
    return _is_arrow(data) or is_pandas(data)


def _is_arrow(data: Any) -> bool:
    return hasattr(data, "__arrow_c_stream__") or hasattr(data, "__arrow_c_array__")


def is_pandas(data: Any) -> bool:
    """Return whether `data` is a pandas frame."""
    return _is_of("pandas", data) and hasattr(data, "columns")


def as_table(data: Any, schema: Schema, optional: Collection[str] = ()) -> pa.Table | None:
    """Return a table, record batch, DataFrame, dict of arrays or list of rows as an Arrow table.

    None for anything else. pandas frames, dicts and rows are converted column by column, and only
    columns in `schema` or with Criteo's names. Data that export Arrow (polars, DuckDB, ...) share
    their memory. Columns in `optional` may be missing.
    """
    data = by_column(data)
    if isinstance(data, pa.Table):
        return data
    if isinstance(data, pa.RecordBatch):
        return pa.Table.from_batches([data])
    if _is_named(data):
        nan_is_null = not isinstance(data, Mapping)
        names = _names(data, schema, optional)
        if len({*names}) < len(names):
            require_columns(names, names, "given", Location("table"))
        columns = {n: _lists(data[n]) if n in schema.inputs else data[n] for n in names}
        return _from_columns(columns, nan_is_null)
    return _imported(data) if _is_arrow(data) else None


def _is_of(package: str, data: Any) -> bool:
    return type(data).__module__.split(".")[0] == package


def by_column(data: Any) -> Any:
    """Convert a list of dicts to a dict of columns; absent keys are missing values.

    A Hugging Face data set becomes a table.
    """
    if _is_of("datasets", data) and hasattr(data, "num_rows") and not isinstance(data, Mapping):
        with foreign_errors("table"):
            return data.with_format("arrow")[:]
    if not (isinstance(data, (list, tuple)) and data and isinstance(data[0], Mapping)):
        return data
    if not all(isinstance(row, Mapping) for row in data):
        raise DataError("table: some of the rows are dicts, some are not")
    names = dict.fromkeys(name for row in data for name in row)
    return {name: [row.get(name) for row in data] for name in names}


ONE_COLUMN = "it is a single column: give the table that it belongs to, or a dict of columns"


def _imported(data: Any) -> pa.Table:
    try:
        if hasattr(data, "__arrow_c_array__") and not hasattr(data, "__arrow_c_stream__"):
            data = pa.record_batch(data)
        return pa.table(data)
    except (pa.ArrowException, TypeError, ValueError) as error:
        reason = first_line(error)
        fix = f"; {ONE_COLUMN}" if "non-struct type" in reason else ""
        raise DataError(
            f"{type(data).__name__}: cannot be read as a table ({reason}){fix}"
        ) from None


def names_in(data: Any) -> list[str]:
    """Return the names of all columns of a frame, a dict or rows; [] for other data."""
    data = by_column(data)
    return [name for name in data if isinstance(name, str)] if _is_named(data) else []


def _is_named(data: Any) -> bool:
    return isinstance(data, Mapping) or is_pandas(data)


def _names(data: Any, schema: Schema, optional: Collection[str]) -> list[str]:
    texts = names_in(data)
    if schema.categories is None:
        named = (schema.time, schema.weights)
        return [n for n in texts if is_numbered(n) or n.lower() == "label" or n in named]
    made = {*schema.derived, *optional}
    stored = [name for name in schema.categories if name not in made]
    require_columns(texts, (*schema.dense, *schema.inputs), "dense", Location("table"))
    require_columns(texts, stored, "category", Location("table"))
    wanted = schema.wanted
    return [name for name in texts if name in wanted]


def _from_columns(columns: dict[str, Any], nan_is_null: bool) -> pa.Table:
    if not columns:
        raise DataError("table: no label, dense (I1.., int_0..) or category (C1.., cat_0..) column")
    arrays = {name: _array(values, nan_is_null, name) for name, values in columns.items()}
    sizes = {len(array) for array in arrays.values()}
    if len(sizes) > 1:
        raise DataError(f"table: columns differ in length, from {min(sizes)} to {max(sizes)} rows")
    return pa.table(arrays)


def _lists(values: Any) -> Any:
    """Return an array (n, width) of floats as lists; anything else unchanged."""
    if not isinstance(values, np.ndarray) or values.dtype.kind != "f" or values.ndim != 2:
        return values
    native = values.astype(values.dtype.newbyteorder("="), order="C", copy=False)
    return pa.FixedSizeListArray.from_arrays(native.ravel(), max(1, values.shape[1]))


def as_columns(
    data: Any,
) -> tuple[dict[str, pa.Array | pa.ChunkedArray], dict[str, RowError]]:
    """Return all columns of a frame, a dict or rows.

    The second dict has unreadable columns, each with the reason.
    """
    data, found, unread = by_column(data), {}, {}
    for name in names_in(data):
        try:
            found[name] = _array(_lists(data[name]), not isinstance(data, Mapping), name)
        except RowError as error:
            unread[name] = error
    return found, unread


def _array(values: Any, nan_is_null: bool, name: str) -> Any:
    if isinstance(values, (str, bytes)) or not hasattr(values, "__iter__"):
        raise Location("table", column=name).error(
            "holds one value rather than a column; give a list of rows, [row], or lists of values"
        )
    try:
        if isinstance(values, np.ndarray) and not values.dtype.isnative:
            values = values.astype(values.dtype.newbyteorder("="))
        return _converted(values, nan_is_null or _is_of("pandas", values))
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
        _refuse_value(values, Location("table", column=name))
        raise Location("table", column=name).error(
            f"the column cannot be read ({first_line(error)})"
        ) from None


def _refuse_value(values: Any, location: Location) -> None:
    """Refuse a value of a different type than earlier ones, in plainer words than Arrow's."""
    before: dict[bool, str] = {}  # inside a list? -> type of the earlier values
    for row, value in enumerate(values):
        bag = value if isinstance(value, _BAGS) else ()
        for inside, each in ((False, value), *((True, item) for item in bag)):
            kind = _type_of(each)
            known = before.setdefault(inside, kind) if kind else kind
            if known != kind and {known, kind} != {"int", "float"}:
                raise location.error(
                    f"holds {kind}, but {known} in earlier rows; give values of one type", row
                )
            if kind == "int" and not -(2**63) <= each < 2**64:
                raise location.error("an integer does not fit 64 bits; give it as text", row)
            if isinstance(each, str) and not each.isascii() and not _is_utf8(each):
                raise location.error(
                    "the text is not UTF-8; encode it as UTF-8, or give bytes", row
                )


def _is_utf8(text: str) -> bool:
    """Whether a text has no lone surrogates, which `errors="surrogateescape"` makes."""
    return text.encode(errors="replace").decode() == text


_BAGS = (list, tuple, np.ndarray)
_TYPES = {
    "bool": (bool, np.bool_),
    "int": (int, np.integer),
    "float": (float, np.floating),
    "text": (str, bytes),
    "list": _BAGS,
}


def _type_of(value: Any) -> str:
    """Return the name of a value's type for messages; "" if it is missing."""
    is_nan = isinstance(value, float) and np.isnan(value)
    name = type(value).__name__
    if value is None or is_nan or name in ("NAType", "NaTType"):
        return ""
    return next((kind for kind, types in _TYPES.items() if isinstance(value, types)), name)


def _converted(values: Any, nan_is_null: bool) -> Any:
    """Return an Arrow array; Python integers from 2**63 on become uint64, like hashes in files."""
    try:
        return pa.array(values, from_pandas=nan_is_null)
    except OverflowError:
        lists = any(isinstance(value, (list, tuple, np.ndarray)) for value in values)
        type_ = pa.list_(pa.uint64()) if lists else pa.uint64()
        return pa.array(values, type_, from_pandas=nan_is_null)


def table_parts(table: pa.Table, name: str = "table") -> Iterator[Part]:
    """Yield the slices of a table; messages call it `name`."""
    for first in range(0, table.num_rows, _PART_ROWS):
        rows = min(_PART_ROWS, table.num_rows - first)
        location = Location(name, None, first)
        read = partial(_read_table, table.slice(first, rows), location)
        yield Part(location, table.schema, rows, read)


def _read_table(
    table: pa.Table, start: Location, names: Sequence[str], coded: Sequence[str]
) -> Pieces:
    return located(start, table.select(list(names)).to_batches(max_chunksize=PIECE_ROWS))


def _stream(reader: pa.RecordBatchReader) -> Part:
    used = iter([reader])

    def read(names: Sequence[str]) -> Iterator[pa.RecordBatch]:
        if next(used, None) is None:
            raise DataError(
                f"{_BATCHES.name}: the reader was read already; give a table or a file instead"
            )
        rows = 0
        for batch in reader:
            _check_types(batch, reader.schema, names, rows)
            rows += batch.num_rows
            yield from _pieces(batch, names)
        if not rows:
            raise DataError(f"{_BATCHES.name}: no rows")

    known = reader.schema
    return Part(_BATCHES, known, None, partial(_read_on, read, _BATCHES), is_stream=True)


def _check_types(batch: pa.RecordBatch, known: pa.Schema, names: Sequence[str], rows: int) -> None:
    """Refuse a batch if its types differ from the reader's schema, as a generator's may."""
    found = batch.schema
    for name in names:
        require_column(found.names, name, "reader's", _BATCHES.moved(rows))
        if found.field(name).type != known.field(name).type:
            raise _BATCHES.of_column(name).error(
                f"from row {rows}: type {found.field(name).type}, but the reader's schema says "
                f"{known.field(name).type}"
            )
