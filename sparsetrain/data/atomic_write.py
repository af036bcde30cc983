# SPDX-License-Identifier: Apache-2.0
"""Atomic file writes: a temporary file, flushed to disk, then renamed."""

from __future__ import annotations

import contextlib
import json
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

from sparsetrain.errors import ConfigError, DataError
from sparsetrain.system.file_locks import lock_file, name_write_errors, remove_dead, replaced_by
from sparsetrain.system.regular_files import read_regular_file

_MAX_BYTES = 256 << 20  # of a description of a million files


@contextlib.contextmanager
def atomic_write(path: Path) -> Iterator[IO[bytes]]:
    """Open a temporary file beside `path`, and rename it to `path` on success.

    Raises
    ------
    ResourceError
        If the disk is full.
    DataError
        If the file cannot be written there.
    """
    draft = path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")
    with name_write_errors(path, DataError), replaced_by(draft, path), open(draft, "wb") as file:
        yield file


def write_json(path: Path, values: Any) -> None:
    """Write plain values, keys in order, so that equal values are equal files."""
    with atomic_write(path) as file:
        file.write(json.dumps(values, indent=1, sort_keys=True, allow_nan=False).encode() + b"\n")


def read_json(path: Path) -> dict[str, Any]:
    """Read a file of `write_json`.

    Raises
    ------
    FileNotFoundError
        If there is no such file.
    DataError
        If it is not a regular file, or damaged.
    """
    try:
        values: dict[str, Any] = json.loads(read_regular_file(path, _MAX_BYTES))
    except FileNotFoundError:
        raise
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}") from None
    except (ValueError, RecursionError):  # JSON and UTF-8 raise the former
        raise DataError(f"{path}: damaged; remove its folder and convert the data again") from None
    return values


def remove_temporaries(folder: Path, name: str = "*") -> None:
    """Remove temporary files of killed writers of `name` in a folder; keep those being written."""
    for left in folder.glob(f".{name}.*.tmp"):
        remove_dead(left)


@contextlib.contextmanager
def exclusive_lock(path: Path, what: str) -> Iterator[None]:
    """Hold an exclusive lock on `what`; it ends with the process.

    Raises
    ------
    ConfigError
        If a process holds the lock.
    """
    with open(path, "w") as file:
        try:
            lock_file(file.fileno())
        except OSError:
            raise ConfigError(f"{what}: another process is writing to it; wait for it") from None
        yield
