# SPDX-License-Identifier: Apache-2.0
"""Device time of a step by kernel, with the gaps between kernels."""

from typing import Any

from harness.gpu_step import steps_of
from harness.gpu_timing import kernels_of
from harness.task import Task


def measure_kernels(task: Task, steps: int) -> dict[str, Any]:
    """Microseconds and launches in a step of every kernel and copy, the longest first."""
    with steps_of(task) as arms:
        return {"task": task.to_dict()} | {
            name: kernels_of(step, steps) for name, step in arms.items()
        }
