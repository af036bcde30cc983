# SPDX-License-Identifier: Apache-2.0
"""Files of a folder that is code: nobody but its owner, who is this user or root, may change them.

Every folder of the path is checked by its descriptor before the next one is looked up in it, and no
link is followed: what another user moves meanwhile is not found. ``native/artefact.c`` does the
same.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from sparsetrain.errors import CheckpointError

_OTHERS = stat.S_IWGRP | stat.S_IWOTH


class PrivateFolder:
    """An opened folder.

    Attributes
    ----------
    path : Path
        Without links.
    """

    def __init__(self, path: Path, descriptor: int) -> None:
        self.path, self._descriptor = path, descriptor

    def read(self, name: str) -> bytes:
        """Return what a regular file of the folder holds.

        Raises
        ------
        CheckpointError
            If there is none, or others may write it.
        """
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK
        path = self.path / name
        with _named(path), os.fdopen(os.open(name, flags, dir_fd=self._descriptor), "rb") as file:
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode):
                raise CheckpointError(f"{path}: it is not a regular file")
            _check(path, status)
            return file.read()


@contextmanager
def open_private(folder: str | Path) -> Iterator[PrivateFolder]:
    """Open a folder of which, as of all above it, no other user can exchange or write anything.

    Raises
    ------
    CheckpointError
        If there is none, or others may write one of them; it names that one and the fix.
    """
    with _named(folder):
        path = Path(os.path.realpath(folder))
        descriptor = _descend(path)
    try:
        yield PrivateFolder(path, descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def _named(path: str | Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise CheckpointError(f"{path}: no exported model ({error.strerror})") from None


def _descend(path: Path) -> int:
    flags = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW
    descriptor = os.open("/", flags)
    try:
        for above, name in zip(reversed(path.parents), path.parts[1:], strict=True):
            _check(above, os.fstat(descriptor), may_stick=True)
            below = os.open(name, flags, dir_fd=descriptor)
            os.close(descriptor)
            descriptor = below
        _check(path, os.fstat(descriptor))
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def _check(path: Path, status: os.stat_result, may_stick: bool = False) -> None:
    """Refuse what others may write; of a folder like /tmp names stay those of who made them."""
    if status.st_uid not in (os.geteuid(), 0):
        raise CheckpointError(f"{path}: it belongs to another user: chown it")
    if status.st_mode & _OTHERS and not (may_stick and status.st_mode & stat.S_ISVTX):
        raise CheckpointError(f"{path}: others may write it: chmod go-w")
