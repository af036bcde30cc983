# SPDX-License-Identifier: Apache-2.0
"""Locks of files and folders, atomic replacement of files, and errors of unwritable paths.

A lock ends with its process. So the process that gets a lock knows that nothing else writes there,
even from a different container.
"""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

from sparsetrain.errors import ResourceError, SparsetrainError

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
    except OSError as error:  # Arrow's have no errno, and a detailed text
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
