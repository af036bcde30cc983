# SPDX-License-Identifier: Apache-2.0
"""Reads of files in folders that other users may write.

A pipe or a device may block or never end, a link may lead out of the folder, and a sparse file may
be larger than memory. All of these are refused.
"""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path


def read_regular_file(path: Path, max_bytes: int, *, follow_links: bool = True) -> bytes:
    """Read a regular file of at most `max_bytes`.

    Raises
    ------
    OSError
        If the file cannot be read, is not regular, is larger than `max_bytes`, or is a link and
        `follow_links` is False; `strerror` says which.
    """
    try:
        # With O_NONBLOCK, a pipe without a writer does not block.
        flags = os.O_RDONLY | os.O_NONBLOCK | (0 if follow_links else os.O_NOFOLLOW)
        descriptor = os.open(path, flags)
    except OSError as error:
        if error.errno == errno.ELOOP and not follow_links:
            raise OSError(errno.ELOOP, "it is a symbolic link", str(path)) from None
        raise
    with os.fdopen(descriptor, "rb") as file:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(errno.EINVAL, "it is not a regular file", str(path))
        content = file.read(max_bytes + 1)
    if len(content) > max_bytes:
        raise OSError(errno.EFBIG, f"it is larger than {max_bytes:,} bytes", str(path))
    return content


def require_regular(path: Path) -> Path:
    """Return the path of a file that can be opened without blocking and read to its end.

    Raises
    ------
    OSError
        If the file cannot be found or is not regular; links are followed.
    """
    if not stat.S_ISREG(path.stat().st_mode):
        raise OSError(errno.EINVAL, "it is not a regular file", str(path))
    return path
