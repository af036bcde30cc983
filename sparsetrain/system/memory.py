# SPDX-License-Identifier: Apache-2.0
"""Large memory that is cheap to touch for the first time: aligned, and on huge pages.

Linux hands out memory page by page, as it is first written. With pages of 4 KiB that took 0.34 s
for each GiB here, as long as reading it from the disk; with pages of 2 MiB, 0.05 s. NumPy asks for
those from 4 MiB on. They also spare the processor most of its address look-ups when rows are read
at random.

A request for more than there is can be granted: where Linux is told to overcommit, whatever is
asked for is, and the process is killed when it writes. So such a request is refused here.
"""

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import numpy as np

ALIGNMENT = 2 << 20  # a huge page; a multiple of what disks and kernels need
LARGE = 4 << 20  # bytes
CHECKED_FROM = 64 << 20  # bytes: to write so many takes long beside asking what there is
_MEMINFO = Path("/proc/meminfo")
_GROUP = Path("/sys/fs/cgroup")


def total_memory() -> int | None:
    """Bytes of memory and swap that there are, used or not; None where that is not told.

    Those of the machine, or of the control group that this process is the root of, as in a
    container. They are read each time: a virtual machine may be given more.
    """
    return min(_totals(), default=None)


def meminfo(name: str) -> int:
    """Bytes that Linux tells of the machine's memory under a name.

    Raises
    ------
    OSError, KeyError, ValueError
        Where it does not.
    """
    lines = dict(line.split(":", 1) for line in _MEMINFO.read_text().splitlines())
    return int(lines[name].split()[0]) << 10


def _totals() -> Iterator[int]:
    with suppress(OSError, KeyError, ValueError):
        swap = meminfo("SwapTotal")
        yield meminfo("MemTotal") + swap
        most = int((_GROUP / "memory.max").read_text())  # or "max", which is no number
        with suppress(OSError, ValueError):
            swap = int((_GROUP / "memory.swap.max").read_text())
        yield most + swap


def check_fits_memory(size: int) -> None:
    """Raise MemoryError if `size` bytes are more than this machine has."""
    there = total_memory() if size >= CHECKED_FROM else None
    if there is not None and size > there:
        raise MemoryError(f"{size} bytes are asked for, {there} is all there is")


def aligned_empty(size: int) -> np.ndarray:
    """Return (size,) uint8, uninitialised, at a multiple of `ALIGNMENT`.

    Raises
    ------
    MemoryError
        If there is no memory.
    """
    check_fits_memory(size)
    whole = np.empty(size + ALIGNMENT, np.uint8)
    start = -whole.ctypes.data % ALIGNMENT
    return whole[start : start + size]
