# SPDX-License-Identifier: Apache-2.0
"""The machine that results are of: processor, memory, versions."""

from __future__ import annotations

import platform
from contextlib import suppress
from importlib import metadata
from pathlib import Path
from typing import Any

from sparsetrain import runtime
from sparsetrain.system.cores import available_cores
from sparsetrain.system.memory import meminfo

_CGROUP = Path("/sys/fs/cgroup")


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


def _processor() -> str:
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def available_bytes() -> int | None:
    """Return the memory that this process could get, or None where the system does not say."""
    with suppress(OSError, KeyError, ValueError):
        return min([meminfo("MemAvailable"), *_cgroup_limit()])
    return None


def _cgroup_limit() -> list[int]:
    with suppress(OSError, ValueError):
        limit = int((_CGROUP / "memory.max").read_text())
        return [max(limit - int((_CGROUP / "memory.current").read_text()), 0)]
    return []
