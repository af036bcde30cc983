# SPDX-License-Identifier: Apache-2.0
"""Whether others had the cores while something was measured: Linux says how long threads waited.

How far times lie apart does not tell: where another process keeps one of two cores busy, what two
threads do together takes up to 1.7 times as long in every round alike.

Kernels on more threads than there are cores wait for one another, whoever else is there. What they
must is left out: as much as they ran and waited beyond all cores, if it is no more than the threads
beyond them can.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from time import process_time
from typing import TypeVar

from sparsetrain import runtime
from sparsetrain.runtime.threads import available_cores

Found = TypeVar("Found")


def share_waited(measure: Callable[[], Found]) -> tuple[Found, float]:
    """What `measure` finds, and for each second of it those that others made threads wait.

    Nothing should be compiled in it: one thread does that, and hardly waits. 0 where the system
    does not tell.
    """
    begin, before, used = time.perf_counter(), _waited(), process_time()
    found = measure()
    # A thread that ended takes along what it waited, before and meanwhile.
    more = sum(max(now - before.get(thread, 0.0), 0.0) for thread, now in _waited().items())
    ran, took = process_time() - used, time.perf_counter() - begin
    return found, max(more - _for_one_another(more + ran, took), 0.0) / took


def _for_one_another(wanted: float, took: float) -> float:
    """Seconds that kernels' own threads must wait, which `wanted` so many seconds of cores."""
    cores, threads = available_cores(), runtime.num_threads()
    return max(min(wanted - cores * took, (threads - cores) * took), 0.0)


def _waited() -> dict[str, float]:
    """Seconds that each thread of this process was ready to run and did not, so far."""
    waited = {}
    for file in Path("/proc/self/task").glob("*/schedstat"):
        with suppress(OSError, ValueError, IndexError):
            waited[file.parent.name] = 1e-9 * int(file.read_text().split()[1])
    return waited
