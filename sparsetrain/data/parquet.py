# SPDX-License-Identifier: Apache-2.0
"""Parquet files as a `Source`: one part per row group, checked before anything is trained on.

Every footer is read when the source is opened, so a missing, empty, truncated or foreign file is
found before the first batch. Rows are read with `ParquetFile.iter_batches`, whose memory does not
grow with the file, and page checksums are verified where the writer made them.
"""

from __future__ import annotations

import glob
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from sparsetrain.errors import DataError

from .place import Place
from .source import PIECE_ROWS, Part, Source

_MAGIC, _ENCRYPTED = b"PAR1", b"PARE"


def are_paths(data: Any) -> bool:
    """Return whether `data` is a path or a sequence of nothing but paths."""
    if isinstance(data, (str, os.PathLike)):
        return True
    return isinstance(data, (list, tuple)) and all(
        isinstance(item, (str, os.PathLike)) for item in data
    )


def parquet_source(paths: Any) -> Source:
    """Open parquet paths, folders and patterns as one source, files in the order given.

    Raises
    ------
    DataError
        If a path cannot be read as parquet; it names the path and what is wrong with it.
    """
    given = [paths] if isinstance(paths, (str, os.PathLike)) else list(paths)
    if not given:
        raise DataError("no parquet path given")
    files = [file for path in given for file in _files(os.fspath(path))]
    parts = tuple(part for file in files for part in _open(file))
    return Source(files[0] if len(files) == 1 else f"{files[0]} and {len(files) - 1} more", parts)


def _files(path: str) -> list[str]:
    """Return the files that one path, folder or pattern stands for."""
    if os.path.isdir(path):
        found = [str(file) for file in sorted(Path(path).rglob("*.parquet")) if _is_data(file)]
        if not found:
            raise DataError(
                f"{path}: the folder holds no *.parquet file; give a file or a folder of them"
            )
        return found
    if not os.path.lexists(path) and glob.has_magic(path):
        found = [
            file for match in sorted(glob.glob(path, recursive=True)) for file in _files(match)
        ]
        if not found:
            raise DataError(f"{path}: the pattern matches no file")
        return found
    return [path]


def _is_data(file: Path) -> bool:
    """Leave out what writers put beside their data, such as `_metadata` or hidden partial files."""
    return file.is_file() and not file.name.startswith(("_", "."))


def _open(file: str) -> Iterator[Part]:
    _check_frame(file)
    try:
        with pq.ParquetFile(file) as reader:
            metadata, schema = reader.metadata, reader.schema_arrow
    except (OSError, pa.ArrowException) as error:
        raise DataError(
            f"{file}: the parquet footer is damaged ({_one_line(error)}); write it again"
        ) from None
    first_row = 0
    for group in range(metadata.num_row_groups):
        rows = metadata.row_group(group).num_rows
        place = Place(file, group, first_row)
        yield Part(place, schema, rows, _Reader(file, metadata, group, place))
        first_row += rows


def _check_frame(file: str) -> None:
    """Look at the marks that open and close a parquet file, to say plainly what is wrong."""
    try:
        with open(file, "rb") as stream:
            head = stream.read(4)
            size = stream.seek(0, os.SEEK_END)
            stream.seek(max(0, size - 4))
            tail = stream.read(4)
    except FileNotFoundError:
        raise DataError(f"{file}: no such file") from None
    except OSError as error:
        raise DataError(f"{file}: cannot be read: {error.strerror}") from None
    if not size:
        raise DataError(f"{file}: the file is empty (0 bytes)")
    if _ENCRYPTED in (head, tail):
        raise DataError(f"{file}: the parquet file is encrypted; decrypt it first")
    if head != _MAGIC:
        raise DataError(
            f"{file}: not a parquet file (it begins with {head!r}); convert it to parquet first"
        )
    if tail != _MAGIC:
        raise DataError(
            f"{file}: the parquet file is truncated (its end is missing); copy or write it again"
        )


class _Reader:
    """Reads one row group; opens its file anew, since a shuffle asks for groups in any order."""

    def __init__(self, file: str, metadata: Any, group: int, place: Place) -> None:
        self._file, self._metadata, self._group, self._place = file, metadata, group, place

    def __call__(self, names: Sequence[str]) -> Iterator[pa.RecordBatch]:
        rows = 0
        try:
            with pq.ParquetFile(
                self._file, metadata=self._metadata, page_checksum_verification=True
            ) as reader:
                for piece in reader.iter_batches(
                    PIECE_ROWS, row_groups=[self._group], columns=list(names)
                ):
                    rows += piece.num_rows
                    yield piece
        except pa.ArrowMemoryError:
            raise  # says nothing about the file
        except (OSError, pa.ArrowException) as error:
            raise self._place.error(
                f"the data cannot be read ({_one_line(error)}); copy or write the file again"
            ) from None
        wanted = self._metadata.row_group(self._group).num_rows
        if rows != wanted:
            raise self._place.error(
                f"{rows} rows where the footer says {wanted}; write the file again"
            )


def _one_line(error: BaseException) -> str:
    return str(error).split("\n")[0].split(". Detail")[0].rstrip(".")
