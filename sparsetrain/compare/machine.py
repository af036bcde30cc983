# SPDX-License-Identifier: Apache-2.0
"""What the figures of a comparison belong to: processor, threads, caches, memory, versions."""

from __future__ import annotations

import platform
from contextlib import suppress
from importlib import metadata
from pathlib import Path
from typing import Any

from sparsetrain import runtime
from sparsetrain.compare import counters
from sparsetrain.compare.memory import available_bytes
from sparsetrain.runtime.threads import available_cores

_CACHE = Path("/sys/devices/system/cpu/cpu0/cache")


def machine() -> dict[str, Any]:
    """What the figures belong to."""
    return {
        "processor": _processor(),
        "cores": available_cores(),
        "threads": runtime.num_threads(),
        "last_cache_bytes": last_cache_bytes(),
        "memory_bytes": available_bytes(),
        "counters": counters.why_not(counters.CACHE_MISSES) or "cache misses",
        "python": platform.python_version(),
        "system": platform.platform(),
        **{name: metadata.version(name) for name in ("apache-tvm", "numpy")},
    }


def last_cache_bytes() -> int | None:
    """Bytes of the processor's last cache, where the system says it."""
    with suppress(OSError, ValueError):
        sizes = [file.read_text().strip() for file in _CACHE.glob("index*/size")]
        return max(1024 * int(size.rstrip("K")) for size in sizes)
    return None


def _processor() -> str:
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()
