# SPDX-License-Identifier: Apache-2.0
"""Files by path, or by URL on a file system of pyarrow's (`s3`, `gs`, `hdfs`, ...) or fsspec's."""

from __future__ import annotations

import os
import re
from functools import lru_cache
from pathlib import Path
from typing import IO, Any

import pyarrow as pa

from sparsetrain.errors import DataError, first_line

_OF_ARROW = ("abfs", "abfss", "file", "gcs", "gs", "hdfs", "s3", "viewfs")
_SINGLE_SLASH = re.compile(r"^([a-z][a-z0-9+.-]+):/(?=[^/])")  # what a `Path` makes of a URL


def normalized(path: str | os.PathLike[str]) -> str:
    """Return a path or URL as text."""
    return _SINGLE_SLASH.sub(r"\1://", os.fspath(path))


def is_url(path: str) -> bool:
    """Return whether a path names a file system."""
    return "://" in path


def open_file(path: str) -> IO[bytes]:
    """Open a file to read; raises `OSError`."""
    if not is_url(path):
        return open(path, "rb")
    system, inside = _resolved(path)
    return system.open_input_file(inside)


def size_and_time(path: str) -> tuple[int, int]:
    """Return the bytes of a file, and when it was changed, in ns."""
    try:
        if not is_url(path):
            found = os.stat(path)
            return found.st_size, found.st_mtime_ns
        system, inside = _resolved(path)
        info = system.get_file_info(inside)
        return int(info.size), int(info.mtime_ns or 0)
    except (OSError, TypeError) as error:
        raise DataError(f"{path}: cannot be read: {first_line(error)}") from None


def files_in(path: str) -> list[str] | None:
    """Return all files below a folder, sorted; None if it is not a folder."""
    if not is_url(path):
        if not os.path.isdir(path):
            return None
        return [str(file) for file in sorted(Path(path).rglob("*")) if file.is_file()]
    from pyarrow.fs import FileSelector, FileType

    system, inside = _resolved(path)
    try:
        if system.get_file_info(inside).type != FileType.Directory:
            return None
        found = system.get_file_info(FileSelector(inside, recursive=True))
    except (OSError, pa.ArrowException) as error:
        raise DataError(f"{path}: cannot be read: {first_line(error)}") from None
    if inside.rstrip("/") not in path or "?" in path:
        raise DataError(f"{path}: name the files of a folder by URLs without % escapes or a query")
    start = path[: path.rindex(inside.rstrip("/"))]
    return sorted(f"{start}{info.path}" for info in found if info.type == FileType.File)


@lru_cache(maxsize=1024)
def _resolved(path: str) -> tuple[Any, str]:
    """Return the file system of a URL, and the path in it."""
    from pyarrow.fs import FileSystem, FSSpecHandler, PyFileSystem

    scheme = path.partition("://")[0]
    try:
        if scheme in _OF_ARROW:
            return FileSystem.from_uri(path)
        from fsspec.core import url_to_fs

        system, inside = url_to_fs(path)
        return PyFileSystem(FSSpecHandler(system)), inside
    except ImportError as error:
        raise DataError(
            f"{path}: {scheme}:// needs fsspec and its package for it ({first_line(error)})"
        ) from None
    except (OSError, ValueError, pa.ArrowException) as error:
        raise DataError(f"{path}: cannot be reached ({first_line(error)})") from None
