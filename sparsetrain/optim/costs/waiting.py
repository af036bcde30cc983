# SPDX-License-Identifier: Apache-2.0
"""Whether others had the cores while something was measured: Linux says how long threads waited.

How far times lie apart does not tell: where another process keeps one of two cores busy, what two
threads do together takes up to 1.7 times as long in every round alike.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

Found = TypeVar("Found")


def share_waited(measure: Callable[[], Found]) -> tuple[Found, float]:
    """What `measure` finds, and for each second of it those that threads waited for a core.

    Nothing should be compiled in it: one thread does that, and hardly waits. 0 where the system
    does not tell.
    """
    begin, before = time.perf_counter(), _waited()
    found = measure()
    # A thread that ended takes along what it waited, before and meanwhile.
    more = (max(now - before.get(thread, 0.0), 0.0) for thread, now in _waited().items())
    return found, sum(more) / (time.perf_counter() - begin)


def _waited() -> dict[str, float]:
    """Seconds that each thread of this process was ready to run and did not, so far."""
    waited = {}
    for file in Path("/proc/self/task").glob("*/schedstat"):
        with suppress(OSError, ValueError, IndexError):
            waited[file.parent.name] = 1e-9 * int(file.read_text().split()[1])
    return waited
