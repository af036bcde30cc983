# SPDX-License-Identifier: Apache-2.0
"""File lists from paths, folders and patterns, and the format of each file.

A name that ends in .parquet is parquet whatever it holds, so a wrong file is reported as wrong. A
name with a text suffix is text. Any other file, such as Criteo's `day_0`, is recognised by its
first bytes.
"""

from __future__ import annotations

import glob
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from sparsetrain.errors import DataError

PARQUET, TEXT = "parquet", "text"
GZIP = b"\x1f\x8b"  # how gzipped files begin

_PARQUET_SUFFIXES = (".parquet", ".pq", ".parq")
_DELIMITERS = {".tsv": "\t", ".txt": "\t", ".csv": ","}
_MAGIC = b"PAR1"
# How files begin that are brought along and cannot be read: what they are, and what helps.
_FOREIGN_FORMATS = {
    b"PK\x03\x04": ("a zip archive", "unpack it first"),
    b"BZh": ("compressed by bzip2", "unpack it, or compress it by gzip"),
    b"\xfd7zXZ": ("compressed by xz", "unpack it, or compress it by gzip"),
    b"\x28\xb5\x2f\xfd": ("compressed by zstd", "unpack it, or compress it by gzip"),
    b"\x93NUMPY": ("a NumPy array", "give its batches to the library, or write it as parquet"),
    b"\x89HDF": ("an HDF5 file", "write its columns as parquet"),
    b"ARROW1": ("an Arrow file", "give the library its table, or write it as parquet"),
    b"ORC": ("an ORC file", "write it as parquet"),
}


def are_paths(data: Any) -> bool:
    """Return whether `data` is a path or a sequence of nothing but paths."""
    if isinstance(data, (str, os.PathLike)):
        return True
    return isinstance(data, (list, tuple)) and all(
        isinstance(item, (str, os.PathLike)) for item in data
    )


def list_files(paths: Any) -> list[str]:
    """Return the files that paths, folders and patterns stand for, in the order given.

    Raises
    ------
    DataError
        If a folder holds no data or a pattern matches nothing.
    """
    given = [paths] if isinstance(paths, (str, os.PathLike)) else list(paths)
    if not given:
        raise DataError("no path given, and no rows: the list is empty")
    return [file for path in given for file in _files(os.fspath(path))]


def kind_of_file(file: str) -> str:
    """Return `PARQUET` or `TEXT`; what cannot be opened counts as parquet, which then says so."""
    stem = file[:-3] if file.endswith(".gz") else file
    suffix = os.path.splitext(stem)[1].lower()
    if suffix in _DELIMITERS:
        return TEXT
    if suffix in _PARQUET_SUFFIXES:
        return PARQUET
    try:
        with open(file, "rb") as stream:
            head = stream.read(4096)
    except OSError:
        return PARQUET
    is_text = head[:2] == GZIP or (head[:4] != _MAGIC and b"\t" in head)
    return TEXT if is_text else PARQUET


def refuse_foreign_formats(file: str, head: bytes) -> None:
    """Look at how a file begins.

    Raises
    ------
    DataError
        If it is of a kind that is known and cannot be read.
    """
    for magic, (what, fix) in _FOREIGN_FORMATS.items():
        if head.startswith(magic):
            raise DataError(f"{file}: is {what}; {fix}")


def delimiter_of(file: str) -> str:
    """Return the delimiter that the name of a text file promises; a tab if it promises none."""
    stem = file[:-3] if file.endswith(".gz") else file
    return _DELIMITERS.get(os.path.splitext(stem)[1].lower(), "\t")


def _files(path: str) -> Iterator[str]:
    """Yield the files that one path, folder or pattern stands for."""
    if os.path.isdir(path):
        yield from _in_folder(path)
    elif not os.path.lexists(path) and glob.has_magic(path):
        found = sorted(glob.glob(path, recursive=True))
        if not found:
            raise DataError(f"{path}: the pattern matches no file")
        for match in found:
            yield from _files(match)
    else:
        yield path


def _in_folder(path: str) -> list[str]:
    files = [file for file in sorted(Path(path).rglob("*")) if _is_data(file, Path(path))]
    for suffixes in (_PARQUET_SUFFIXES, tuple(_DELIMITERS)):
        found = [str(file) for file in files if _suffix(file) in suffixes]
        if found:
            return found
    raise DataError(
        f"{path}: the folder holds no *.parquet, *.tsv, *.csv or *.txt file; "
        "give a file or a folder of them"
    )


def _suffix(file: Path) -> str:
    name = file.name[:-3] if file.name.endswith(".gz") else file.name
    return os.path.splitext(name)[1].lower()


def _is_data(file: Path, folder: Path) -> bool:
    """Leave out what writers put beside their data, such as `_metadata` or hidden partial files."""
    hidden = any(part.startswith(("_", ".")) for part in file.relative_to(folder).parts)
    return file.is_file() and not hidden
