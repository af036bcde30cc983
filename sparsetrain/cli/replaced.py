# SPDX-License-Identifier: Apache-2.0
"""Files of results: until all of one is written, what was there stays.

A file is written beside where it goes, under a lock that ends with the process. What one that was
killed left there is removed by the next that writes the same file. A file system without locks
keeps it.
"""

import errno
import fcntl
import os
import re
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from sparsetrain.errors import DataError, ResourceError

_FULL = (errno.ENOSPC, errno.EDQUOT)


@contextmanager
def replaced(path: Path) -> Iterator[Path]:
    """Give a neighbour of `path` to write, with the same suffix; rename it if all went well.

    It is there, and empty. Of a link, the file that it leads to is replaced.

    Raises
    ------
    ResourceError
        If the disk is full.
    DataError
        If the file cannot be written there.
    """
    try:
        with _draft(Path(os.path.realpath(path))) as draft:
            yield draft
    except OSError as error:  # of Arrow's, too, which name no file
        kind = ResourceError if error.errno in _FULL else DataError
        reason = os.strerror(error.errno) if error.errno else error
        raise kind(f"{path}: cannot be written: {reason}") from None


@contextmanager
def _draft(path: Path) -> Iterator[Path]:
    path.parent.mkdir(parents=True, exist_ok=True)
    _remove_leftovers(path)
    draft = path.with_name(f".{path.stem}.{secrets.token_hex(4)}{path.suffix}")
    try:
        with open(draft, "xb") as held:
            _is_locked(held.fileno())
            yield draft
        with open(draft, "rb") as written:
            os.fsync(written.fileno())
        os.replace(draft, path)
    finally:
        draft.unlink(missing_ok=True)


def _remove_leftovers(path: Path) -> None:
    """Whoever can have the lock of a draft knows that its writer is gone, in any container."""
    is_draft = re.compile(rf"\.{re.escape(path.stem)}\.[0-9a-f]{{8}}{re.escape(path.suffix)}")
    for draft in path.parent.iterdir():
        if is_draft.fullmatch(draft.name):
            with suppress(OSError), open(draft, "rb") as left:
                if _is_locked(left.fileno()):
                    draft.unlink()


def _is_locked(descriptor: int) -> bool:
    """Take the lock of a file, if nobody has it."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True
