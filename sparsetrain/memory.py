# SPDX-License-Identifier: Apache-2.0
"""Large memory that is cheap to touch for the first time: aligned, and on huge pages.

Linux hands out memory page by page, as it is first written. With pages of 4 KiB that took 0.34 s
for each GiB here, as long as reading it from the disk; with pages of 2 MiB, 0.05 s. NumPy asks for
those from 4 MiB on. They also spare the processor most of its address look-ups when rows are read
at random.
"""

import numpy as np

ALIGNMENT = 2 << 20  # a huge page; a multiple of what disks and kernels need
LARGE = 4 << 20  # bytes


def aligned(size: int) -> np.ndarray:
    """Return (size,) uint8, uninitialised, at a multiple of `ALIGNMENT`.

    Raises
    ------
    MemoryError
        If there is no memory.
    """
    whole = np.empty(size + ALIGNMENT, np.uint8)
    start = -whole.ctypes.data % ALIGNMENT
    return whole[start : start + size]
