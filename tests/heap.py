# SPDX-License-Identifier: Apache-2.0
"""The C library's heap in tests: freed memory stays with the process; how much is in use.

Compiling takes megabytes and frees them again, kernel after kernel. The C library would hand them
back to the system, which clears each page that is taken anew: a fifth of the time of a compile.
"""

import ctypes
import os
import resource
from contextlib import suppress
from pathlib import Path

STATM = Path("/proc/self/statm")
# Of GNU's C library: variable for processes to come -> number in `mallopt`, bytes. Up to the third
# arrays lie on the heap: the most there is, and what it comes to by itself once such are freed.
_KEPT = {
    "MALLOC_TRIM_THRESHOLD_": (-1, 2**30),
    "MALLOC_TOP_PAD_": (-2, 2**26),
    "MALLOC_MMAP_THRESHOLD_": (-3, 2**25),
}
VARIABLES = tuple(_KEPT)


def keep_freed_memory() -> None:
    """In this process, and in those that it starts; another C library does as it would."""
    for variable, (number, size) in _KEPT.items():
        os.environ.setdefault(variable, str(size))
        with suppress(AttributeError):
            ctypes.CDLL(None).mallopt(number, size)


def give_back() -> None:
    """Return freed memory to the system, so that what is taken next is seen."""
    with suppress(AttributeError):
        ctypes.CDLL(None).malloc_trim(0)


def resident_bytes() -> int:
    """Memory of this process without what was freed, as Linux counts it."""
    give_back()
    return int(STATM.read_text().split()[1]) * resource.getpagesize()
