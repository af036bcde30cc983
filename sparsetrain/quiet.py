# SPDX-License-Identifier: Apache-2.0
"""Drop known lines of standard error, of C++ too, and pass all others on."""

from __future__ import annotations

import os
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

_HOLDING = threading.RLock()  # of two that took turns, one would give back what the other held


@contextmanager
def without_lines(is_known: Callable[[bytes], bool]) -> Iterator[None]:
    """Hold standard error back meanwhile, and let go of it without the known lines."""
    with _HOLDING, tempfile.TemporaryFile() as held:
        sys.stderr.flush()
        before = os.dup(2)
        os.dup2(held.fileno(), 2)
        try:
            yield
        finally:
            sys.stderr.flush()
            os.dup2(before, 2)
            os.close(before)
            held.seek(0)
            os.write(2, b"".join(line for line in held if not is_known(line)))
