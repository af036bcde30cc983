# SPDX-License-Identifier: Apache-2.0
"""Drop known lines of standard error, of C++ too, and pass all others on.

Standard error is one for all threads, so those that hold it back at once share that: the first
begins, the last lets go, and the lines that any of them knows are dropped. A process that is forked
meanwhile writes where its parent did before.
"""

from __future__ import annotations

import os
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import IO

Known = Callable[[bytes], bool]


class _Held:
    """What is held back, by how many."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._holders = 0
        self._known: list[Known] = []
        self._file: IO[bytes] | None = None
        self._before = -1

    def begin(self, is_known: Known) -> None:
        """Hold back, or share in it."""
        with self._lock:
            if not self._holders:
                file = tempfile.TemporaryFile()  # noqa: SIM115 (`end` closes it)
                _flush()
                self._before = os.dup(2)
                os.dup2(file.fileno(), 2)
                self._file = file
            self._holders += 1
            self._known.append(is_known)

    def end(self) -> None:
        """Let go, if no other holds."""
        with self._lock:
            self._holders -= 1
            if self._holders:
                return
            known, self._known = self._known, []
            file, self._file = self._file, None
            if file is None:  # this is a fork, whose standard error is what it was
                return
            with file:
                _flush()
                os.dup2(self._before, 2)
                os.close(self._before)
                file.seek(0)
                lines = (line for line in file if not any(one(line) for one in known))
                _write(b"".join(lines))

    def after_fork(self) -> None:
        """Write where the parent did before; a thread of the parent may hold the lock."""
        self._lock = threading.RLock()
        if self._file is not None:  # its own `end` may follow, and finds nothing to let go of
            os.dup2(self._before, 2)
            os.close(self._before)
            self._file.close()
            self._file = None


def _flush() -> None:
    if sys.stderr is not None:
        sys.stderr.flush()


def _write(data: bytes) -> None:
    while data:
        data = data[os.write(2, data) :]


_held = _Held()
os.register_at_fork(after_in_child=_held.after_fork)


@contextmanager
def filter_stderr(is_known: Known) -> Iterator[None]:
    """Hold standard error back meanwhile, and let go of it without the known lines."""
    holds = False
    with suppress(OSError):  # a process without standard error, or a place for files
        _held.begin(is_known)
        holds = True
    try:
        yield
    finally:
        if holds:
            _held.end()
