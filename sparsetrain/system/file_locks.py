# SPDX-License-Identifier: Apache-2.0
"""Who may write a file or folder, and what is said of one that cannot be written.

A lock ends with the process that holds it: who can have it knows that nobody writes there any more,
in whatever container the other ran.
"""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from sparsetrain.errors import ResourceError, SparsetrainError

_FULL = (errno.ENOSPC, errno.EDQUOT)


@contextmanager
def name_write_errors(path: Path, kind: type[SparsetrainError]) -> Iterator[None]:
    """Turn what the operating system says into an error that names `path`.

    Raises
    ------
    ResourceError
        If the disk is full.
    SparsetrainError
        Of that kind, if `path` cannot be written for another reason.
    """
    try:
        yield
    except OSError as error:  # Arrow's too, which say more than the reason
        reason = os.strerror(error.errno) if error.errno else error
        raised = ResourceError if is_disk_full(error) else kind
        raise raised(f"{path}: cannot be written: {reason}") from None


def is_disk_full(error: OSError) -> bool:
    """Whether the disk is full, or what this user may have of it."""
    return error.errno in _FULL


@contextmanager
def try_lock(path: Path) -> Iterator[bool]:
    """Hold the lock of what is there, unless somebody else does; yields whether it is ours.

    A file system without locks answers no. NFS locks what is open to write, so it does of a folder.
    """
    descriptor = os.open(path, os.O_RDONLY if path.is_dir() else os.O_RDWR)
    try:
        yield _is_taken(descriptor)
    finally:
        os.close(descriptor)


def lock_file(descriptor: int) -> None:
    """Take the lock of an open file until it is closed.

    Raises
    ------
    OSError
        If somebody else has it, or there are no locks.
    """
    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)


def _is_taken(descriptor: int) -> bool:
    try:
        lock_file(descriptor)
    except OSError:
        return False
    return True
