# SPDX-License-Identifier: Apache-2.0
"""Events that the system counts for this process: cache misses, as bytes moved from memory.

Linux's ``perf_event_open``, one counter for each thread, without a library. Virtual machines and
cautious systems often give no hardware counters; then the answer is None and `why_not` says why.
"""

from __future__ import annotations

import ctypes
import os
import platform
import struct
from collections.abc import Callable
from contextlib import suppress
from typing import NamedTuple

LINE_BYTES = 64

_SYSCALLS = {"x86_64": 298, "aarch64": 241}
_USER_ONLY = 1 << 5 | 1 << 6  # exclude_kernel, exclude_hv


class Event(NamedTuple):
    """Type and number of an event, as in ``linux/perf_event.h``."""

    kind: int
    number: int


CACHE_MISSES = Event(0, 3)


def count(event: Event, work: Callable[[], object]) -> int | None:
    """Run `work` and return how often `event` happened in the threads that there are now."""
    try:
        files = [_open(event, thread) for thread in map(int, os.listdir("/proc/self/task"))]
    except OSError:
        work()
        return None
    try:
        before = sum(map(_read, files))
        work()
        return sum(map(_read, files)) - before
    finally:
        for file in files:
            os.close(file)


def why_not(event: Event) -> str | None:
    """Say why an event cannot be counted here, or None if it can."""
    try:
        os.close(_open(event, 0))
    except OSError as error:
        return f"not counted: {error.strerror}"
    return None


def _open(event: Event, thread: int) -> int:
    number = _SYSCALLS.get(platform.machine()) if platform.system() == "Linux" else None
    if number is None:
        raise OSError(0, f"no counters on {platform.system()} {platform.machine()}")
    # type, size, config, period, sample_type, read_format, flags; zeros for the rest of 112 bytes.
    head = struct.pack("=IIQQQQQ", event.kind, 112, event.number, 0, 0, 0, _USER_ONLY)
    attributes = ctypes.create_string_buffer(head, 112)
    library = ctypes.CDLL(None, use_errno=True)
    file = library.syscall(
        ctypes.c_long(number), attributes, *map(ctypes.c_long, (thread, -1, -1, 0))
    )
    if file < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    return file


def _read(file: int) -> int:
    with suppress(OSError, struct.error):
        return struct.unpack("=Q", os.read(file, 8))[0]
    return 0
