# SPDX-License-Identifier: Apache-2.0
"""`Source`: tabular data as a sequence of parts, read in pieces; files by path or URL.

A part is the unit that a shuffle moves (a row group, or a slice of a table); a piece is the unit
held in memory (a record batch of at most `PIECE_ROWS` rows). No more than a piece is decoded at
once. URLs name files on a file system of pyarrow (`s3`, `gs`, `hdfs`, ...) or fsspec.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import IO, Any
from urllib.parse import quote

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sparsetrain.data.values.arrow_types import has_views, view_lengths, without_views
from sparsetrain.data.values.location import Location
from sparsetrain.errors import DataError, first_line

PIECE_ROWS = 16_384  # 40 columns of it fit a core's second-level cache several times over
CODED_ROWS = 16 * PIECE_ROWS  # larger, since the dictionary of each piece has to be encoded
HELD_ROWS = 1 << 20  # a part with more rows is never in memory as a whole
# Metadata key of a file that `convert` wrote; the value is the fingerprint of its encoder.
MARK = b"sparsetrain.converted"
DATASET_FILE = "dataset.json"  # written by `convert` beside its files, with their checksums

Range = tuple[Any, Any]
Pieces = Iterator[tuple[Location, pa.RecordBatch]]


def encoder_fingerprint(schema: pa.Schema) -> str | None:
    """Return the fingerprint of the encoder that converted the rows, or None."""
    mark = (schema.metadata or {}).get(MARK)
    return None if mark is None else mark.decode()


def read_footer(stream: IO[bytes]) -> tuple[int, bytes, bytes]:
    """Return a file's size, footer, and final magic bytes."""
    size = stream.seek(0, os.SEEK_END)
    stream.seek(max(0, size - 8))
    end = stream.read(8)
    length = int.from_bytes(end[:-4], "little")
    stream.seek(max(0, size - 8 - length))
    return size, stream.read(length), end[-4:]


def footer_checksum(footer: bytes) -> str:
    """Return the checksum of a footer, as stored in `dataset.json`."""
    return f"{zlib.crc32(footer):08x}"


@dataclass(frozen=True)
class Part:
    """Rows of one file or table.

    Attributes
    ----------
    location : Location
        Location of the rows, for messages.
    schema : pyarrow.Schema
    num_rows : int or None
        None for a stream of unknown length.
    read : callable
        Given column names and the argument `coded` of `pieces`, yields pieces of at most
        `PIECE_ROWS` rows, or `CODED_ROWS` if columns are coded, with their locations.
    ranges : callable, optional
        Given a column name, returns its minimum and maximum if known without reading, else None.
    is_stream : bool
        Whether the rows can be read only once.
    dialect : Dialect, optional
        The format of a text file, which can be read in blocks.
    """

    location: Location
    schema: pa.Schema
    num_rows: int | None
    read: Callable[[Sequence[str], Sequence[str]], Pieces]
    ranges: Callable[[str], Range | None] | None = None
    is_stream: bool = False
    dialect: Any = None

    def pieces(self, names: Sequence[str], coded: Sequence[str] = ()) -> Pieces:
        """Yield the record batches with rows, and their locations.

        If `coded` names the category columns, text may come in an equivalent form: a category
        column as a dictionary or `Digits`, any other column of a text file as parsed numbers.
        """
        for location, piece in self.read(names, coded):
            if piece.num_rows:
                _check_codes(piece, location)
                yield location, _without_views(piece, location)

    @property
    def is_converted(self) -> bool:
        """Whether `convert` wrote this data, so that its values are already encoded."""
        return encoder_fingerprint(self.schema) is not None

    def range_of(self, name: str) -> Range | None:
        """Return the minimum and maximum of a column if known without reading."""
        return None if self.ranges is None else self.ranges(name)


def _check_codes(piece: pa.RecordBatch, location: Location) -> None:
    """Refuse codes outside their dictionary, which Arrow does not check by default."""
    for name, column in zip(piece.schema.names, piece.columns, strict=True):
        is_list = hasattr(column, "value_parent_indices")  # for a list, the row of each value
        array = column.flatten() if is_list else column
        if not pa.types.is_dictionary(array.type):
            continue
        extremes = pc.min_max(array.indices).as_py()
        for code in (extremes["min"], extremes["max"]):
            if code is not None and not 0 <= code < len(array.dictionary):
                row = pc.index(array.indices, code).as_py()
                row = column.value_parent_indices()[row].as_py() if is_list else row
                raise location.of_column(name).error(
                    f"code {code} is outside its dictionary of {len(array.dictionary)} values; "
                    "write the data again",
                    row,
                )


def _without_views(piece: pa.RecordBatch, location: Location) -> pa.RecordBatch:
    if not any(map(has_views, piece.schema.types)):
        return piece
    for name, column in zip(piece.schema.names, piece.columns, strict=True):
        if (view_lengths(column) < 0).any():
            raise location.of_column(name).error(
                "a text has a length below 0; write the data again"
            )
    arrays = [without_views(column) for column in piece.columns]
    return pa.RecordBatch.from_arrays(arrays, names=piece.schema.names)


def located(location: Location, batches: Iterable[pa.RecordBatch]) -> Pieces:
    """Yield consecutive record batches with their locations; `location` is the first one's."""
    for batch in batches:
        yield location, batch
        location = location.moved(batch.num_rows)


def keep_rows(
    location: Location, piece: pa.RecordBatch, keep: np.ndarray
) -> tuple[Location, pa.RecordBatch]:
    """Return the rows of a record batch where `keep` (n,) bool is true; they keep their numbers."""
    numbers = location.row_numbers(len(keep))[keep]
    return location.numbered(numbers), piece.filter(pa.array(keep))


@dataclass(frozen=True)
class Source:
    """Tabular data in parts that can be read in any order.

    Attributes
    ----------
    name : str
        The name in messages.
    parts : tuple of Part
    files : tuple of str
        The files with the rows; none for rows in memory.
    """

    name: str
    parts: tuple[Part, ...]
    files: tuple[str, ...] = ()

    @property
    def num_rows(self) -> int | None:
        """Number of rows in all parts; None if it is unknown for a part."""
        counts = [part.num_rows for part in self.parts]
        return None if None in counts else sum(count or 0 for count in counts)


_OF_ARROW = ("abfs", "abfss", "file", "gcs", "gs", "hdfs", "s3", "viewfs")
_PACKED = (".gz", ".bz2", ".xz", ".zst")
_PLAIN = "/:@!$&'()*+,;="  # characters that need no escape in a URL's path


def suffix_of(file: str) -> str:
    """Return the suffix of a file's name, ignoring a compression suffix."""
    name, suffix = os.path.splitext(file)
    return os.path.splitext(name if suffix in _PACKED else file)[1].lower()


def is_url(path: str) -> bool:
    """Return whether this is a URL rather than a path."""
    return "://" in path


def open_file(path: str) -> IO[bytes]:
    """Open a file to read.

    Raises
    ------
    DataError
        If the file is missing or cannot be opened.
    """
    try:
        if not is_url(path):
            return open(path, "rb")
        system, inside = resolved(path)
        return system.open_input_file(inside)
    except FileNotFoundError:
        raise DataError(f"{path}: no such file") from None
    except (OSError, pa.ArrowInvalid) as error:  # ArrowInvalid: a name with two slashes
        raise DataError(f"{path}: cannot be read: {first_line(error)}") from None


def plain_path(path: str) -> str:
    """Return a path, or a URL's path, without escapes."""
    return resolved(path)[1] if is_url(path) else path


def size_and_time(path: str) -> tuple[int, int]:
    """Return a file's size in bytes and modification time in ns."""
    try:
        if not is_url(path):
            found = os.stat(path)
            return found.st_size, found.st_mtime_ns
        system, inside = resolved(path)
        info = system.get_file_info(inside)
        return int(info.size), int(info.mtime_ns or 0)
    except (OSError, TypeError) as error:
        raise DataError(f"{path}: cannot be read: {first_line(error)}") from None


def _is_of_arrow(path: str) -> bool:
    return path.partition("://")[0] in _OF_ARROW


def escaped(path: str) -> str:
    """Return a path or URL, with escapes for characters that Arrow does not accept in a URL."""
    return quote(path, f"{_PLAIN}?%") if _is_of_arrow(path) else path


def spelled(url: str, inside: str) -> str:
    """Return a path on the file system of `url` as it is spelled in such a URL."""
    return quote(inside, _PLAIN) if _is_of_arrow(url) else inside


@lru_cache(maxsize=1024)
def resolved(path: str) -> tuple[Any, str]:
    """Return the file system of a URL, and the path in it."""
    from pyarrow.fs import FileSystem, FSSpecHandler, PyFileSystem

    scheme = path.partition("://")[0]
    try:
        if _is_of_arrow(path):
            return FileSystem.from_uri(escaped(path))
        from fsspec.core import url_to_fs

        system, inside = url_to_fs(path)
        return PyFileSystem(FSSpecHandler(system)), inside
    except ImportError as error:
        raise DataError(
            f"{path}: {scheme}:// needs fsspec and its package for it ({first_line(error)})"
        ) from None
    except (OSError, ValueError, pa.ArrowException) as error:
        raise DataError(f"{path}: cannot be reached ({first_line(error)})") from None
