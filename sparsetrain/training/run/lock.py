# SPDX-License-Identifier: Apache-2.0
"""One writer per run folder: a lock that names its process and is released when that ends.

The operating system holds the lock (`flock`), so killing the process releases it. The file stays
and names the last process. On a file system without locks, the folder counts as locked if the named
process is alive on this machine.
"""

import contextlib
import errno
import json
import os
import socket
import stat
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from sparsetrain.errors import CheckpointError
from sparsetrain.system.file_locks import lock_file

FILE = ".lock"
_TAKEN = (errno.EWOULDBLOCK, errno.EACCES)
_MAX_BYTES = 4096


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold the right to write in `folder`.

    Raises
    ------
    CheckpointError
        If another process, named in the message, holds the lock, or the lock is a link, a hard link
        or not a regular file.
    """
    # The file is not truncated before the lock is held, and links are not followed.
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK
    descriptor = os.open(folder / FILE, flags, 0o666)
    with os.fdopen(descriptor, "r+b") as file:
        _require_own(folder, os.fstat(descriptor))
        holder = _holder(file)
        try:
            lock_file(file.fileno())
        except OSError as error:
            if error.errno in _TAKEN or _is_alive(holder):
                raise _refusal(folder, holder) from None
        file.seek(0)
        file.truncate()
        file.write(json.dumps(_own()).encode())
        file.flush()
        yield


def _require_own(folder: Path, status: os.stat_result) -> None:
    """Raise an error unless the lock is a regular file with one name: it will be overwritten."""
    if not stat.S_ISREG(status.st_mode) or status.st_nlink != 1:
        raise CheckpointError(
            f"{folder / FILE} is not a lock file of a run: remove it if no run is writing there"
        )


def _own() -> dict[str, Any]:
    started = time.strftime("%Y-%m-%d %H:%M:%S")
    return {"process": os.getpid(), "host": socket.gethostname(), "since": started}


def _holder(file: Any) -> dict[str, Any]:
    file.seek(0)
    try:
        holder = json.loads(file.read(_MAX_BYTES).decode("utf-8"))
    except (ValueError, RecursionError):
        return {}
    return holder if isinstance(holder, dict) else {}


def _is_alive(holder: dict[str, Any]) -> bool:
    process = holder.get("process")
    if holder.get("host") != socket.gethostname() or type(process) is not int or process < 1:
        return False
    try:
        os.kill(process, 0)
    except PermissionError:
        return True
    except (OSError, OverflowError):
        return False
    return process != os.getpid()


def _refusal(folder: Path, holder: dict[str, Any]) -> CheckpointError:
    who = ", ".join(f"{key} {holder.get(key, 'unknown')!s:.60}" for key in ("process", "host"))
    since = f"{holder.get('since', 'an unknown time')!s:.30}"
    return CheckpointError(
        f"{folder} is being written by another run ({who}) since {since}: wait for it, stop it, or "
        "choose a different folder"
    )
