# SPDX-License-Identifier: Apache-2.0
"""How busy other processes were meanwhile: the first question about a figure from a shared machine.

Linux counts processor time in hundredths of a second, so this is of a whole run, not of a step.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

_STAT = Path("/proc/stat")
_BUSY = (0, 1, 2, 5, 6, 7)  # user, nice, system, interrupts of both kinds, stolen by the hypervisor


class Others:
    """Adds up, over the times that it watches, what other processes used."""

    def __init__(self) -> None:
        self._seconds, self._used = 0.0, 0.0

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Watch as long as this block runs."""
        began, before = time.monotonic(), _elsewhere()
        yield
        after = _elsewhere()
        if before is not None and after is not None:
            self._seconds += time.monotonic() - began
            self._used += max(after - before, 0.0)

    @property
    def cores(self) -> float | None:
        """Cores that others kept busy on average, or None where the system does not say."""
        return self._used / self._seconds if self._seconds else None


def _elsewhere() -> float | None:
    """Seconds of processor time that all processes but this one have used so far."""
    with suppress(OSError, ValueError, IndexError):
        fields = _STAT.read_text().split("\n", 1)[0].split()[1:]
        busy = sum(int(fields[n]) for n in _BUSY) / os.sysconf("SC_CLK_TCK")
        own = os.times()
        return busy - own.user - own.system
    return None
