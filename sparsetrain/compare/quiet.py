# SPDX-License-Identifier: Apache-2.0
"""Drop what TVM says of its own lowering while the stock path is compiled; pass the rest on."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager

_KNOWN = (b"Warning: Unknown pragma pragma_scope", b"Warning: Fast mode segfaults")


@contextmanager
def without_known_warnings() -> Iterator[None]:
    """Hold standard error back, of C++ too, and let go of it without the known lines."""
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
            kept = [line for line in held if not any(known in line for known in _KNOWN)]
            os.write(2, b"".join(kept))
