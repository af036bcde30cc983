# SPDX-License-Identifier: Apache-2.0
"""Filter of standard error, including C++'s output: drop known lines and pass the rest on.

Standard error belongs to the whole process, so one thread at a time filters it, and a fork waits
until the filter ends.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import IO

from sparsetrain.system.locks import new_lock

_lock = new_lock()


@contextmanager
def filter_stderr(is_known: Callable[[bytes], bool]) -> Iterator[None]:
    """Hold back standard error during the block, then write it without the known lines."""
    with _lock:
        try:
            stderr = os.dup(2)
        except OSError:  # a process without standard error
            yield
            return
        try:
            with tempfile.TemporaryFile() as file:
                _redirect(file.fileno())
                try:
                    yield
                finally:
                    _redirect(stderr)
                    _write_unknown(file, is_known)
        finally:
            os.close(stderr)


def _redirect(descriptor: int) -> None:
    if sys.stderr is not None:
        sys.stderr.flush()
    os.dup2(descriptor, 2)


def _write_unknown(file: IO[bytes], is_known: Callable[[bytes], bool]) -> None:
    file.seek(0)
    data = b"".join(line for line in file if not is_known(line))
    while data:
        data = data[os.write(2, data) :]
