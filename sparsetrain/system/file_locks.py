# SPDX-License-Identifier: Apache-2.0
"""Locks of files and folders, atomic replacement of files, and errors of unwritable paths.

A lock is released when its process ends, so a process that gets a lock knows that no other process
writes there, even in a different container. To replace a file, a temporary file is written, flushed
to disk and renamed.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import IO, Any

from sparsetrain.errors import ConfigError, DataError, ResourceError, SparsetrainError
from sparsetrain.system.regular_files import read_regular_file

_FULL = (errno.ENOSPC, errno.EDQUOT)


@contextmanager
def name_write_errors(path: Path, kind: type[SparsetrainError]) -> Iterator[None]:
    """Turn an error of the operating system into one that names `path`.

    Raises
    ------
    ResourceError
        If the disk is full.
    SparsetrainError
        An error of class `kind`, if `path` cannot be written for a different reason.
    """
    try:
        yield
    except OSError as error:  # Arrow's errors have no errno, but a detailed text
        reason = os.strerror(error.errno) if error.errno else error
        raised = ResourceError if is_disk_full(error) else kind
        raise raised(f"{path}: cannot be written: {reason}") from None


def is_disk_full(error: OSError) -> bool:
    """Return whether an error says that the disk, or this user's quota, is full."""
    return error.errno in _FULL


@contextmanager
def try_lock(path: Path) -> Iterator[bool]:
    """Hold the lock of an existing file or folder if it is free; yield whether it is held.

    It is never held on a file system without locks, or for a folder on NFS.
    """
    descriptor = _open(path)
    try:
        held = _try_lock(descriptor)
        # A file that was deleted and recreated meanwhile has a new lock.
        yield held and os.path.samestat(os.fstat(descriptor), os.stat(path))
    finally:
        os.close(descriptor)


@contextmanager
def locked_draft(draft: Path, make: Callable[[Path], Any] = Path.mkdir) -> Iterator[None]:
    """Make a new file or folder, and hold its lock if the file system has locks."""
    descriptor = _make_locked(draft, make)
    try:
        yield
    finally:
        os.close(descriptor)


def _make_locked(draft: Path, make: Callable[[Path], Any]) -> int:
    """Make a draft and lock it; start again if `remove_dead` deletes it before the lock."""
    while True:
        make(draft)
        with suppress(FileNotFoundError):
            descriptor = _open(draft)
            with suppress(OSError):
                fcntl.flock(descriptor, fcntl.LOCK_EX)  # waits for a process that is removing it
            if os.path.lexists(draft):
                return descriptor
            os.close(descriptor)


@contextmanager
def replaced_by(draft: Path, path: Path) -> Iterator[None]:
    """Make and lock the file `draft` for the block; then flush it and rename it to `path`.

    After an error, `draft` is removed and `path` is unchanged.
    """
    try:
        with locked_draft(draft, partial(Path.touch, exist_ok=False)):
            yield
        sync(draft)
        os.replace(draft, path)
    finally:
        draft.unlink(missing_ok=True)


def sync(path: Path) -> None:
    """Flush a file, or the entries of a folder, to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def remove_dead(draft: Path, remove: Callable[[Path], None] = Path.unlink) -> None:
    """Remove a draft if its lock is free, since its writer has ended. Without locks, keep it."""
    with suppress(OSError), try_lock(draft) as dead:  # other processes may clean up too
        if dead:
            remove(draft)


def lock_file(descriptor: int) -> None:
    """Lock an open file until it is closed.

    Raises
    ------
    OSError
        If another process holds the lock, or the file system has none.
    """
    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)


def _open(path: Path) -> int:
    return os.open(path, os.O_RDONLY if path.is_dir() else os.O_RDWR)


def _try_lock(descriptor: int) -> bool:
    try:
        lock_file(descriptor)
    except OSError:
        return False
    return True


_MAX_BYTES = 256 << 20  # enough for a description of a million files


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
    """Write plain values with sorted keys, so that equal values give equal files."""
    with atomic_write(path) as file:
        file.write(json.dumps(values, indent=1, sort_keys=True, allow_nan=False).encode() + b"\n")


def read_json(path: Path) -> dict[str, Any]:
    """Read a file that `write_json` wrote.

    Raises
    ------
    FileNotFoundError
        If there is no such file.
    DataError
        If the file is damaged, or not a regular file.
    """
    try:
        values: dict[str, Any] = json.loads(read_regular_file(path, _MAX_BYTES))
    except FileNotFoundError:
        raise
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}") from None
    except (ValueError, RecursionError):  # bad JSON and bad UTF-8 raise ValueError
        raise DataError(f"{path}: damaged; remove its folder and convert the data again") from None
    return values


def remove_temporaries(folder: Path, name: str = "*") -> None:
    """Remove temporary files that killed writers of `name` left; keep those being written."""
    for left in folder.glob(f".{name}.*.tmp"):
        remove_dead(left)


@contextlib.contextmanager
def exclusive_lock(path: Path, what: str) -> Iterator[None]:
    """Hold an exclusive lock on `what`; it ends with the process.

    Raises
    ------
    ConfigError
        If another process holds the lock.
    """
    with open(path, "w") as file:
        try:
            lock_file(file.fileno())
        except OSError:
            raise ConfigError(f"{what}: another process is writing to it; wait for it") from None
        yield
