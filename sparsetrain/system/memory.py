# SPDX-License-Identifier: Apache-2.0
"""Large aligned arrays on huge pages, and the size of the machine's memory.

Linux maps memory page by page, on the first write. With pages of 4 KiB that took 0.34 s per GiB,
as long as reading a GiB from disk; with pages of 2 MiB, which NumPy requests for arrays of 4 MiB or
more, it took 0.05 s. Huge pages also save most TLB misses when rows are read at random.

If Linux overcommits, it grants a request for more memory than the machine has, and kills the
process when it writes. So this module refuses such a request.
"""

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import numpy as np

ALIGNMENT = 2 << 20  # a huge page; a multiple of the alignment that disks and kernels need
LARGE = 4 << 20  # bytes
CHECKED_FROM = 64 << 20  # bytes; writing these takes much longer than the check
_MEMINFO = Path("/proc/meminfo")
_GROUP = Path("/sys/fs/cgroup")


def total_memory() -> int | None:
    """Return the bytes of memory and swap, used or free; None if the system does not say.

    The total is the machine's memory, or the lower limit of this process's control group, as in a
    container. Each call reads it again, since a virtual machine may grow.
    """
    return min(_totals(), default=None)


def free_memory() -> int | None:
    """Return the bytes that this process could allocate; None if the system does not say."""
    return min(_free(), default=None)


def _free() -> Iterator[int]:
    with suppress(OSError, KeyError, ValueError):
        yield _meminfo("MemAvailable")
        most = int((_GROUP / "memory.max").read_text())  # or "max", which is not a number
        yield max(most - int((_GROUP / "memory.current").read_text()), 0)


def _meminfo(name: str) -> int:
    lines = dict(line.split(":", 1) for line in _MEMINFO.read_text().splitlines())
    return int(lines[name].split()[0]) << 10


def _totals() -> Iterator[int]:
    with suppress(OSError, KeyError, ValueError):
        swap = _meminfo("SwapTotal")
        yield _meminfo("MemTotal") + swap
        most = int((_GROUP / "memory.max").read_text())  # or "max", which is not a number
        with suppress(OSError, ValueError):
            swap = int((_GROUP / "memory.swap.max").read_text())
        yield most + swap


def check_fits_memory(size: int) -> None:
    """Raise MemoryError if `size` bytes exceed the memory of this machine."""
    limit = total_memory() if size >= CHECKED_FROM else None
    if limit is not None and size > limit:
        raise MemoryError(f"{size} bytes requested, but this machine has {limit}")


def aligned_empty(size: int) -> np.ndarray:
    """Return uninitialized memory (size,) uint8, aligned to `ALIGNMENT`.

    Raises
    ------
    MemoryError
        If there is not enough memory.
    """
    check_fits_memory(size)
    whole = np.empty(size + ALIGNMENT, np.uint8)
    start = -whole.ctypes.data % ALIGNMENT
    return whole[start : start + size]
