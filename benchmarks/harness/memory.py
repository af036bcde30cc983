# SPDX-License-Identifier: Apache-2.0
"""Memory that all arms need together, checked before any of them starts."""

from pathlib import Path

from harness.task import Task

# Slots of an optimizer, as a share of the tables. Torch has no row-wise Adagrad.
_SLOTS = {"sgd": 0.0, "adagrad": 1.0, "rowwise_adagrad": 1 / 16}
_WIDTHS = {"fbgemm_half": 0.5}  # of a table's number, where it is not float32's
_PROCESS_BYTES = 600_000_000  # code, batches, workspaces


def needed_bytes(task: Task, arms: list[str]) -> int:
    """Bytes that the arms hold together, the roofs' table included."""
    total = task.config.table_bytes()
    for arm in arms:
        ordinary = arm in ("torch", "torch_compile") and task.optimizer == "rowwise_adagrad"
        slots = 1.0 if ordinary else _SLOTS[task.optimizer]
        width = _WIDTHS.get(arm, 1.0)
        total += int(task.config.table_bytes() * (width + slots)) + _PROCESS_BYTES
    return total


def available_bytes() -> int:
    """Return the memory that new processes could get."""
    lines = Path("/proc/meminfo").read_text().splitlines()
    line = next(line for line in lines if line.startswith("MemAvailable"))
    return int(line.split()[1]) * 1024
