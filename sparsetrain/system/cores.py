# SPDX-License-Identifier: Apache-2.0
"""Cores that this process may use: its affinity mask, and the CPU quota of its control group.

Also the kind of processor, for exports.

A container with a quota of one CPU sees all cores of its host. Threads that exceed the quota are
paused for the rest of each period, and a kernel waits for all its threads.
"""

from __future__ import annotations

import os
import platform
from pathlib import Path

_CGROUPS, _OWN = Path("/sys/fs/cgroup"), Path("/proc/self/cgroup")


def is_x86() -> bool:
    """Return whether this machine's processor is x86-64."""
    return platform.machine() in ("x86_64", "AMD64")


def default_level() -> str:
    """Return the default CPU level of an export."""
    return "x86-64-v3" if is_x86() else "native"


def own_cores() -> set[int]:
    """Return the cores of the affinity mask; all cores if the system has none, such as macOS."""
    mask = getattr(os, "sched_getaffinity", None)
    return set(range(os.cpu_count() or 1)) if mask is None else set(mask(0))


def available_cores() -> int:
    """Return the number of cores in the affinity mask, or the quota's whole CPUs if fewer."""
    cores, quota = len(own_cores()), cpu_quota()
    return cores if quota is None else max(1, min(cores, int(quota)))


def cpu_quota(own: Path = _OWN, root: Path = _CGROUPS) -> float | None:
    """Return the CPUs that the control group and its parents allow; None without a limit.

    Reads version 2 of control groups, and version 1 if its controller `cpu` is in use.
    """
    try:
        lines = own.read_text().splitlines()
    except OSError:
        return None
    found = []
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if not controllers or "cpu" in controllers.split(","):
            base = root / "cpu" if controllers else root
            # A container sees its own group as the root, though the path is the host's.
            found += [_quota(base / part) for part in _ancestors(path.strip("/"))]
    return min((quota for quota in found if quota is not None), default=None)


def _ancestors(path: str) -> list[str]:
    parts = path.split("/")
    return ["/".join(parts[:count]) for count in range(len(parts) + 1)]


def _quota(group: Path) -> float | None:
    try:
        if (group / "cpu.max").exists():
            quota, period = (group / "cpu.max").read_text().split()
        else:
            quota = (group / "cpu.cfs_quota_us").read_text().strip()
            period = (group / "cpu.cfs_period_us").read_text()
        return int(quota) / int(period) if int(quota) > 0 else None
    except (OSError, ValueError):  # "max" is not a limit
        return None
