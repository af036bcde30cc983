# SPDX-License-Identifier: Apache-2.0
"""`open_source`: opens every supported kind of input data."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from functools import cache
from pathlib import Path
from typing import Any

from sparsetrain.data.batch import Batch
from sparsetrain.data.read.files import are_paths, file_parts, list_files
from sparsetrain.data.read.source import BatchSource, Source
from sparsetrain.data.read.tables import ONE_COLUMN, is_table, table_source
from sparsetrain.data.schema.columns import find_labels
from sparsetrain.data.schema.schema import Schema
from sparsetrain.data.values.location import Location
from sparsetrain.errors import DataError


def open_source(
    data: Any, schema: Schema | str | Path | None = None, optional: Collection[str] = ()
) -> Source | BatchSource:
    """Open data of any supported kind.

    Parameters
    ----------
    data : path or list of paths
        Parquet or text files (.tsv, .csv, .txt, also .gz, .bz2, .xz, .zst), folders of them
        (searched in depth) or glob patterns; also URLs, such as ``s3://bucket/folder``.
    data : pyarrow Table, RecordBatch or RecordBatchReader, DataFrame, dict of arrays, list of rows
        A reader can be read only once. In a pandas frame a NaN is a null. A row is a dict; absent
        keys are missing values. Any object that exports Arrow data works, such as a polars frame. A
        pyarrow dataset, a DuckDB relation and a streamed Hugging Face data set are read piece by
        piece in each epoch.
    data : Batch or iterable of Batch
    schema : Schema or path, optional
        Names the columns if they do not have Criteo's names, and describes the text format.
    optional : collection of str
        Columns of the schema that frames, dicts and rows may lack.

    Returns
    -------
    Source or BatchSource

    Raises
    ------
    DataError
        If a file is missing, empty, damaged or of an unknown kind, or there are no rows.
    """
    if isinstance(data, (Source, BatchSource)):
        return data
    schema = Schema.read(schema) if isinstance(schema, (str, Path)) else schema or _criteo()
    if are_paths(data):
        files = list_files(data)
        parts = tuple(part for file in files for part in file_parts(file, schema))
        name = files[0] if len(files) == 1 else f"{files[0]} and {len(files) - 1} more"
        return _not_empty(Source(name, parts, tuple(files)))
    if isinstance(data, Batch):
        return BatchSource("batch", [data])
    kind = f"{type(data).__module__}.{type(data).__name__}"
    refused = next((fix for names, fix in _FOREIGN.items() if kind.startswith(names)), None)
    if refused is not None:
        raise DataError(f"cannot read rows from a {type(data).__name__}; {refused}")
    source = table_source(data, schema, optional)
    if source is not None:
        return _not_empty(source)
    if isinstance(data, (list, tuple)) and any(is_table(item) for item in data):
        raise DataError(
            f"cannot read rows from a {type(data).__name__} of tables; give one table, as "
            "pyarrow.concat_tables or pandas.concat makes it"
        )
    if isinstance(data, Iterable):
        return BatchSource("batches", data)
    raise DataError(
        f"cannot read rows from a {type(data).__name__}; give paths of parquet or text files, "
        "an Arrow table, a DataFrame, a dict of arrays, a list of rows or batches"
    )


def open_rows(data: Any, schema: Schema | str | Path | None = None) -> Source:
    """Open data with rows; refuse batches."""
    opened = open_source(data, schema)
    if isinstance(opened, Source):
        return opened
    raise DataError(
        f"{opened.name}: a {type(opened.items).__name__} is read as batches, which are encoded "
        "already and have no columns; give files, a table, a DataFrame, a list of rows or a "
        "pyarrow.RecordBatchReader"
    )


# (package, class) of unsupported data -> advice.
_FOREIGN = {
    "datasets.arrow_dataset.Column": ONE_COLUMN,
    "datasets.iterable_dataset.IterableColumn": ONE_COLUMN,
    "numpy.ndarray": "its columns have no names: pandas.DataFrame(array, columns=[...]) gives them "
    "some, or Batch(dense, ids, labels) takes arrays",
    "torch.Tensor": "its columns have no names: Batch(dense, ids, labels) takes arrays",
    "scipy.": "its columns have no names: of a CSR matrix m of categories, each row is a bag: "
    "Batch(dense, [Ragged(m.indices, m.indptr)], labels); of numbers, "
    "pandas.DataFrame(m.toarray(), columns=[...])",
    "polars.lazyframe": "it is lazy: collect() it, or write it by sink_parquet",
    "_duckdb.DuckDBPyConnection": "give the relation that connection.sql(...) returns",
    "datasets.dataset_dict.": "it holds several splits: give one, such as data['train']",
}


@cache
def _criteo() -> Schema:
    """Return the default schema; constructing it each time takes longer than opening a batch."""
    return Schema()


def require_labels(source: Source | BatchSource, schema: Schema | None = None) -> None:
    """Check, without reading rows, that every raw file has the label columns.

    Converted data's encoder checks its own labels later.

    Raises
    ------
    DataError
        If one is missing.
    """
    if isinstance(source, BatchSource):
        return
    for name, part in {part.location.name: part for part in source.parts}.items():
        if not part.is_converted:
            find_labels(part.schema.names, schema, Location(name))


def _not_empty(source: Source) -> Source:
    if source.num_rows == 0:
        raise DataError(f"{source.name}: no rows")
    return source
