# SPDX-License-Identifier: Apache-2.0
"""Drop known lines of standard error, of C++ too, and pass all others on.

Standard error belongs to the process. Threads that hold it back at once share what they hold; the
last lets go of all of it, without the lines that any of them knows.
"""

from __future__ import annotations

import os
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import IO

Known = Callable[[bytes], bool]


class _Held:
    """What is held back, for as long as one thread or several hold it."""

    def __init__(self) -> None:
        self._turn = threading.RLock()
        self._holders = 0
        self._known: list[Known] = []

    def join(self, is_known: Known) -> None:
        """Hold it, as the first or beside others."""
        with self._turn:
            if not self._holders:
                self._begin()
            self._holders += 1
            self._known.append(is_known)

    def leave(self) -> None:
        """Hold it no more; the last lets go."""
        with self._turn:
            self._holders -= 1
            if not self._holders:
                self._end()

    def _begin(self) -> None:
        held: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 (`_end` closes it)
        sys.stderr.flush()
        self._file, self._before = held, os.dup(2)
        os.dup2(held.fileno(), 2)

    def _end(self) -> None:
        sys.stderr.flush()
        os.dup2(self._before, 2)
        os.close(self._before)
        known, self._known = self._known, []
        with self._file as held:
            held.seek(0)
            os.write(2, b"".join(line for line in held if not any(of(line) for of in known)))


_HELD = _Held()


@contextmanager
def without_lines(is_known: Known) -> Iterator[None]:
    """Hold standard error back meanwhile, and let go of it without the known lines."""
    _HELD.join(is_known)
    try:
        yield
    finally:
        _HELD.leave()
