# SPDX-License-Identifier: Apache-2.0
"""Description of this machine for results: processor, memory, versions."""

from __future__ import annotations

import platform
from contextlib import suppress
from importlib import metadata
from pathlib import Path
from typing import Any

from sparsetrain.runtime.threads import num_threads
from sparsetrain.system.cores import available_cores
from sparsetrain.system.memory import free_memory


def describe_machine() -> dict[str, Any]:
    """Return processor, threads, memory and versions, as stored in a certificate."""
    return {
        "processor": _processor(),
        "cores": available_cores(),
        "threads": num_threads(),
        "memory_bytes": free_memory(),
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
