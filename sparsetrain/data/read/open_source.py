# SPDX-License-Identifier: Apache-2.0
"""`open_source`: recognition of every kind of input data.

`FORMATS` is the table of file formats. A file with the suffix .parquet is opened as parquet, so
that wrong content is reported. A file with a text suffix is opened as text. Any other file, such as
Criteo's `day_0`, is recognized by its first bytes.
"""

from __future__ import annotations

import fnmatch
import glob
import os
import re
from collections.abc import Callable, Collection, Iterable, Iterator
from functools import cache
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import unquote

import pyarrow as pa

from sparsetrain.data.batch import Batch
from sparsetrain.data.read.added_columns import with_partitions
from sparsetrain.data.read.parquet import is_parquet, parquet_parts
from sparsetrain.data.read.source import (
    Part,
    Source,
    escaped,
    is_url,
    open_file,
    plain_path,
    resolved,
    spelled,
    suffix_of,
)
from sparsetrain.data.read.tables import ONE_COLUMN, is_table, table_source
from sparsetrain.data.read.text_blocks import DELIMITERS, is_text
from sparsetrain.data.read.text_rows import text_parts
from sparsetrain.data.rows import BatchSource
from sparsetrain.data.schema.schema import Schema
from sparsetrain.errors import DataError, first_line


class FileFormat(NamedTuple):
    """A format: suffixes and first bytes of its files, and the function that cuts them into parts.

    Parts know their number of rows, except in formats that the conversion splits itself, such as
    text.
    """

    suffixes: tuple[str, ...]
    begins: Callable[[bytes], bool]
    parts: Callable[[str, Schema], Iterable[Part]]


FORMATS = (
    FileFormat((".parquet", ".pq", ".parq"), is_parquet, lambda file, _: parquet_parts(file)),
    FileFormat(tuple(DELIMITERS), is_text, text_parts),
)


# First bytes of files that cannot be read: their format, and advice.
_FOREIGN_FORMATS = {
    b"PK\x03\x04": ("a zip archive", "unpack it first"),
    b"\x93NUMPY": ("a NumPy array", "give its batches to the library, or write it as parquet"),
    b"\x89HDF": ("an HDF5 file", "write its columns as parquet"),
    b"ARROW1": ("an Arrow file", "give the library its table, or write it as parquet"),
    b"ORC": ("an ORC file", "write it as parquet"),
}


def are_paths(data: Any) -> bool:
    """Return whether `data` is a path or a sequence of paths."""
    if isinstance(data, (str, os.PathLike)):
        return True
    return isinstance(data, (list, tuple)) and all(
        isinstance(item, (str, os.PathLike)) for item in data
    )


_SINGLE_SLASH = re.compile(r"^([a-z][a-z0-9+.-]+):/(?=[^/])")  # a URL shortened by `Path`


def list_files(paths: Any) -> list[str]:
    """Return the files of paths, folders and patterns, in this order."""
    given = [paths] if isinstance(paths, (str, os.PathLike)) else list(paths)
    if not given:
        raise DataError("no path given, and no rows: the list is empty")
    return [file for path in given for file in _files(_normalized(path))]


def _normalized(path: str | os.PathLike[str]) -> str:
    """Return a path or URL as text.

    Raises
    ------
    DataError
        If it contains a null byte, at which C code would cut it off.
    """
    text = os.fspath(path)
    if "\0" in text:
        raise DataError(f"{text!r}: no path has a null byte")
    return _SINGLE_SLASH.sub(r"\1://", text)


def file_parts(file: str, schema: Schema) -> Iterator[Part]:
    """Open a file of any format; an unreadable file is opened as parquet, for its error message."""
    try:
        with open_file(file) as stream:
            head = stream.read(4096)
    except (OSError, DataError):
        head = b""
    for magic, (what, fix) in _FOREIGN_FORMATS.items():
        if head.startswith(magic):
            raise DataError(f"{file}: is {what}; {fix}")
    named = (form for form in FORMATS if suffix_of(file) in form.suffixes)
    begun = (form for form in FORMATS if form.begins(head))
    parts = next(chain(named, begun, FORMATS)).parts(file, schema)
    yield from map(with_partitions, parts) if "=" in plain_path(file) else parts


def _files(path: str) -> Iterator[str]:
    """Yield the files of one path, folder or pattern."""
    inside = _files_in(path)
    if inside is not None:
        yield from _data_files(path, inside)
    elif is_url(path) and "*" in path:
        folder = path[: path.rindex("/", 0, path.index("*"))]
        spellings = ((file, {file, unquote(file)}) for file in _files_in(folder) or ())
        yield from _found(path, [file for file, names in spellings if fnmatch.filter(names, path)])
    elif not is_url(path) and not os.path.lexists(path) and glob.has_magic(path):
        for match in _found(path, sorted(glob.glob(path, recursive=True))):
            yield from _files(match)
    elif os.path.exists(path) and not os.path.isfile(path):
        raise DataError(f"{path}: is a pipe or a device; write its rows to a file first")
    else:
        yield path


def _found(pattern: str, files: list[str]) -> list[str]:
    if not files:
        raise DataError(f"{pattern}: the pattern matches no file")
    return files


def _files_in(path: str) -> list[str] | None:
    """Return all files below a folder, sorted; None if it is not a folder."""
    if not is_url(path):
        if not os.path.isdir(path):
            return None
        return [str(file) for file in sorted(Path(path).rglob("*")) if file.is_file()]
    from pyarrow.fs import FileSelector, FileType

    system, inside = resolved(path)
    try:
        if system.get_file_info(inside).type != FileType.Directory:
            return None
        found = system.get_file_info(FileSelector(inside, recursive=True))
    except (OSError, pa.ArrowException) as error:
        raise DataError(f"{path}: cannot be read: {first_line(error)}") from None
    base = spelled(path, inside.rstrip("/"))
    path = escaped(path)
    if base not in path or "?" in path:
        raise DataError(
            f"{path}: name the files of a folder by URLs without a query or needless % escapes"
        )
    start = path[: path.rindex(base)]
    files = (info.path for info in found if info.type == FileType.File)
    return sorted(f"{start}{spelled(path, file)}" for file in files)


def _data_files(path: str, inside: list[str]) -> list[str]:
    base = escaped(path) if is_url(path) else os.path.normpath(path)
    names = (file[len(base) :] if file.startswith(base) else file for file in inside)
    files = [file for file, name in zip(inside, names, strict=True) if _is_data(name)]
    for form in FORMATS:
        found = [file for file in files if suffix_of(file) in form.suffixes]
        if found:
            return found
    *first, last = (f"*{suffix}" for form in FORMATS for suffix in form.suffixes)
    known = f"{', '.join(first)} or {last}"
    raise DataError(f"{path}: the folder holds no {known} file; give a file or a folder of them")


def _is_data(file: str) -> bool:
    """Return whether a file has data, unlike `_metadata` or partial files beside the data."""
    return not any(part.startswith(("_", ".")) for part in file.split("/"))


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


def _not_empty(source: Source) -> Source:
    if source.num_rows == 0:
        raise DataError(f"{source.name}: no rows")
    return source
