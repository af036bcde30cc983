# SPDX-License-Identifier: Apache-2.0
"""Description of this machine, its free memory, and the peak memory of a piece of work.

Peak memory needs Linux: the peak is reset before the work, after freed memory went back to the
system. The system counts lazily and in pages, so differences below 1 MB mean nothing.
"""

from __future__ import annotations

import ctypes
import gc
import platform
from collections.abc import Callable
from contextlib import suppress
from importlib import metadata
from pathlib import Path
from typing import Any

import tvm

from sparsetrain import runtime
from sparsetrain.runtime.threads import available_cores
from sparsetrain.system.memory import meminfo

_STATUS = Path("/proc/self/status")
_CGROUP = Path("/sys/fs/cgroup")
_RESET_PEAK = "5"


def describe_machine() -> dict[str, Any]:
    """Return processor, threads, memory and versions, as a report keeps them."""
    return {
        "processor": _processor(),
        "cores": available_cores(),
        "threads": runtime.num_threads(),
        "memory_bytes": available_bytes(),
        "python": platform.python_version(),
        "system": platform.platform(),
        **{name: metadata.version(name) for name in ("apache-tvm", "numpy")},
    }


def available_bytes() -> int | None:
    """Return the memory that this process could get, or None where the system does not say."""
    with suppress(OSError, KeyError, ValueError):
        return min([meminfo("MemAvailable"), *_cgroup_limit()])
    return None


def measure_peak(work: Callable[[], object]) -> int | None:
    """Run `work`; return by how many bytes memory in use rose, or None if the system is silent."""
    release_memory()
    try:
        Path("/proc/self/clear_refs").write_text(_RESET_PEAK)
        before = _status("VmRSS")
        work()
        return max(_status("VmHWM") - before, 0)
    except (OSError, KeyError):
        work()
        return None


def release_memory() -> None:
    """Return freed memory to the system: Python's, TVM's pools, the C library's."""
    gc.collect()
    tvm.get_global_func("vm.builtin.memory_manager.clear")()
    with suppress(OSError, AttributeError):  # only the GNU C library has malloc_trim
        ctypes.CDLL(None).malloc_trim(0)


def _status(name: str) -> int:
    fields = dict(line.split(":", 1) for line in _STATUS.read_text().splitlines())
    return 1024 * int(fields[name].split()[0])


def _cgroup_limit() -> list[int]:
    with suppress(OSError, ValueError):
        limit = int((_CGROUP / "memory.max").read_text())
        return [max(limit - int((_CGROUP / "memory.current").read_text()), 0)]
    return []


def _processor() -> str:
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()
