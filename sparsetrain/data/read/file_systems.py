# SPDX-License-Identifier: Apache-2.0
"""Files by path, or by URL on a file system of pyarrow (`s3`, `gs`, `hdfs`, ...) or fsspec."""

from __future__ import annotations

import os
import re
from functools import lru_cache
from pathlib import Path
from typing import IO, Any
from urllib.parse import quote

import pyarrow as pa

from sparsetrain.errors import DataError, first_line

_OF_ARROW = ("abfs", "abfss", "file", "gcs", "gs", "hdfs", "s3", "viewfs")
_PACKED = (".gz", ".bz2", ".xz", ".zst")
_PLAIN = "/:@!$&'()*+,;="  # characters that need no escape in a URL's path
_SINGLE_SLASH = re.compile(r"^([a-z][a-z0-9+.-]+):/(?=[^/])")  # a URL shortened by `Path`


def normalized(path: str | os.PathLike[str]) -> str:
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
        system, inside = _resolved(path)
        return system.open_input_file(inside)
    except FileNotFoundError:
        raise DataError(f"{path}: no such file") from None
    except (OSError, pa.ArrowInvalid) as error:  # ArrowInvalid: a name with two slashes
        raise DataError(f"{path}: cannot be read: {first_line(error)}") from None


def plain_path(path: str) -> str:
    """Return a path, or a URL's path, without escapes."""
    return _resolved(path)[1] if is_url(path) else path


def size_and_time(path: str) -> tuple[int, int]:
    """Return a file's size in bytes and modification time in ns."""
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
    base = _spelled(path, inside.rstrip("/"))
    path = escaped(path)
    if base not in path or "?" in path:
        raise DataError(
            f"{path}: name the files of a folder by URLs without a query or needless % escapes"
        )
    start = path[: path.rindex(base)]
    files = (info.path for info in found if info.type == FileType.File)
    return sorted(f"{start}{_spelled(path, file)}" for file in files)


def _is_of_arrow(path: str) -> bool:
    return path.partition("://")[0] in _OF_ARROW


def escaped(path: str) -> str:
    """Return a path or URL, with escapes for characters that Arrow does not accept in a URL."""
    return quote(path, f"{_PLAIN}?%") if _is_of_arrow(path) else path


def _spelled(url: str, inside: str) -> str:
    """Return a path on the file system of `url` as it is spelled in such a URL."""
    return quote(inside, _PLAIN) if _is_of_arrow(url) else inside


@lru_cache(maxsize=1024)
def _resolved(path: str) -> tuple[Any, str]:
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
