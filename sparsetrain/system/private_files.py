# SPDX-License-Identifier: Apache-2.0
"""Files of a folder that holds code: only its owner, this user or root, may change them.

Each folder of the path is checked through its descriptor before the next one is opened in it, and
no link is followed. So no other user can swap a folder during the checks.
``serving/native/artefact.c`` does the same.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

OTHERS = stat.S_IWGRP | stat.S_IWOTH  # write permission of group and others
_O_PATH = getattr(os, "O_PATH", os.O_RDONLY)  # only Linux has O_PATH


class NotPrivateError(OSError):
    """Another user could replace or write a file or folder; the message names it and the fix."""


class PrivateFolder:
    """An opened folder.

    Attributes
    ----------
    path : Path
        The folder's path without links.
    """

    def __init__(self, path: Path, descriptor: int) -> None:
        self.path, self._descriptor = path, descriptor

    def read(self, name: str) -> bytes:
        """Return the bytes of a regular file in the folder.

        Raises
        ------
        NotPrivateError
            If the file is not regular, or other users own it or may write it.
        OSError
            If it does not exist.
        """
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK
        path = self.path / name
        with os.fdopen(_open(path, flags, self._descriptor), "rb") as file:
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode):
                raise NotPrivateError(f"{path}: it is not a regular file")
            _check(path, status)
            return file.read()


@contextmanager
def open_private(folder: str | Path) -> Iterator[PrivateFolder]:
    """Open a folder during the block, with the checks of `private_descriptor`."""
    path = Path(os.path.realpath(folder))
    descriptor = private_descriptor(path)
    try:
        yield PrivateFolder(path, descriptor)
    finally:
        os.close(descriptor)


def private_descriptor(path: Path) -> int:
    """Open a folder if no other user can replace or write it, or any folder above it.

    Raises
    ------
    NotPrivateError
        If another user may write one of these folders, or owns it.
    OSError
        If the folder does not exist, or `path` contains a link.
    """
    flags = _O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW
    descriptor = os.open("/", flags)
    try:
        for above, name in zip(reversed(path.parents), path.parts[1:], strict=True):
            _check(above, os.fstat(descriptor), may_stick=True)
            below = _open(above / name, flags, descriptor)
            os.close(descriptor)
            descriptor = below
        _check(path, os.fstat(descriptor))
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def make_private(folder: Path) -> None:
    """Make a folder and its parents, writable only by this user whatever the umask is."""
    for each in [*reversed(folder.parents), folder]:
        if not each.exists():
            each.mkdir(mode=0o755, exist_ok=True)


def _open(path: Path, flags: int, folder: int) -> int:
    """Open the last part of `path` in an opened folder; an error gives the whole path."""
    try:
        return os.open(path.name, flags, dir_fd=folder)
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from None


def _check(path: Path, status: os.stat_result, may_stick: bool = False) -> None:
    """Refuse a file or folder that other users own or may write; `may_stick` allows /tmp."""
    if status.st_uid not in (os.geteuid(), 0):
        raise NotPrivateError(f"{path}: it belongs to another user: chown it")
    if status.st_mode & OTHERS and not (may_stick and status.st_mode & stat.S_ISVTX):
        raise NotPrivateError(f"{path}: other users may write it: chmod go-w")
