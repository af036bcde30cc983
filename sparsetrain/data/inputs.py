# SPDX-License-Identifier: Apache-2.0
"""`open_source`: the one place that tells what kind of data it was given."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from sparsetrain.errors import DataError

from .batch import Batch
from .parquet import are_paths, parquet_source
from .source import BatchSource, Source
from .tables import table_source


def open_source(data: Any) -> Source | BatchSource:
    """Open anything that rows can be read from.

    Parameters
    ----------
    data : path or list of paths
        Parquet files, folders of them (searched in depth) or glob patterns.
    data : pyarrow Table, RecordBatch or RecordBatchReader, pandas DataFrame, dict of arrays
        A reader can be read only once. In a DataFrame a NaN is a null, as in pandas.
    data : Batch or iterable of Batch

    Returns
    -------
    Source or BatchSource

    Raises
    ------
    DataError
        If a file is missing, empty, damaged or no parquet, or there are no rows.
    """
    if isinstance(data, (Source, BatchSource)):
        return data
    if are_paths(data):
        return _not_empty(parquet_source(data))
    if isinstance(data, Batch):
        return BatchSource("batch", [data])
    source = table_source(data)
    if source is not None:
        return _not_empty(source)
    if isinstance(data, Iterable):
        return BatchSource("batches", data)
    raise DataError(
        f"cannot read rows from a {type(data).__name__}; give parquet paths, an Arrow table, "
        "a DataFrame, a dict of arrays or batches"
    )


def _not_empty(source: Source) -> Source:
    if source.num_rows == 0:
        raise DataError(f"{source.name}: no rows")
    return source
