# SPDX-License-Identifier: Apache-2.0
"""Memory that a piece of work needs at its peak, as the system counts it, and what there is.

Linux alone tells: the peak can be reset, so what rose above the state before belongs to the work.
Freed memory is handed back first, or a second piece of work would seem to need none. The system
counts in pages and lazily, so a few hundred kilobytes mean nothing.
"""

from __future__ import annotations

import ctypes
import gc
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import tvm

from sparsetrain.system.memory import meminfo

_STATUS = Path("/proc/self/status")
_RESET_PEAK = "5"


def available_bytes() -> int | None:
    """What the system could give to this process, or None where it does not say."""
    with suppress(OSError, KeyError, ValueError):
        return min([meminfo("MemAvailable"), *_group_limit()])
    return None


def peak_of(work: Callable[[], object]) -> int | None:
    """Bytes by which memory in use rose while `work` ran, or None where the system does not say."""
    give_back()
    try:
        Path("/proc/self/clear_refs").write_text(_RESET_PEAK)
        before = _status("VmRSS")
        work()
        return max(_status("VmHWM") - before, 0)
    except (OSError, KeyError):
        work()
        return None


def give_back() -> None:
    """Return freed memory to the system: Python's, TVM's pools, the C library's."""
    gc.collect()
    tvm.get_global_func("vm.builtin.memory_manager.clear")()
    with suppress(OSError, AttributeError):  # another C library than GNU's has no such function
        ctypes.CDLL(None).malloc_trim(0)


def _status(name: str) -> int:
    fields = dict(line.split(":", 1) for line in _STATUS.read_text().splitlines())
    return 1024 * int(fields[name].split()[0])


def _group_limit() -> list[int]:
    """What is left below a limit of this process's control group, if it has one."""
    with suppress(OSError, ValueError):
        root = Path("/sys/fs/cgroup")
        most = int((root / "memory.max").read_text())
        return [max(most - int((root / "memory.current").read_text()), 0)]
    return []
