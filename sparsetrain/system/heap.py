# SPDX-License-Identifier: Apache-2.0
"""The C library's heap during a compile: freed memory is reused at once.

TVM creates a solver for each proof that its own rules cannot complete, some 40 in a small model. A
solver takes 16 MB and is freed soon after. By default the C library returns this memory to the
system, which clears each page when it is taken again; this takes 8 of the 11 ms of a proof.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache

# For glibc: environment variable -> (parameter number of `mallopt`, bytes). These sizes are the
# largest that glibc chooses by itself, after a block of 32 MiB has been freed.
_KEPT = {"MALLOC_MMAP_THRESHOLD_": (-3, 32 << 20), "MALLOC_TRIM_THRESHOLD_": (-1, 64 << 20)}


@contextmanager
def reused_heap() -> Iterator[None]:
    """Keep freed memory during the block, and return it to the system at the end.

    Variables of the environment take precedence. C libraries other than glibc are left as they are.
    """
    _keep()
    try:
        yield
    finally:
        with suppress(AttributeError):
            ctypes.CDLL(None).malloc_trim(0)


@cache
def _keep() -> None:
    with suppress(AttributeError):
        mallopt = ctypes.CDLL(None).mallopt
        for variable, (number, size) in _KEPT.items():
            if variable not in os.environ:
                mallopt(number, size)
