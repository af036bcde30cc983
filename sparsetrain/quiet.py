# SPDX-License-Identifier: Apache-2.0
"""Drop known lines of standard error, of C++ too, and pass all others on."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def without_lines(is_known: Callable[[bytes], bool]) -> Iterator[None]:
    """Hold standard error back meanwhile, and let go of it without the known lines."""
    sys.stderr.flush()
    with tempfile.TemporaryFile() as held:
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
