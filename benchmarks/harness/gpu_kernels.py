# SPDX-License-Identifier: Apache-2.0
"""Where the device's time of a step goes: each kernel, and the gaps between them.

PyTorch's profiler sees the launches of the whole process, ours too; without it nothing is measured.
"""

import time
from typing import Any

import tvm

from harness.gpu_step import steps_of
from harness.task import Task

WARM = 10


def measure_kernels(task: Task, steps: int) -> dict[str, Any]:
    """Microseconds and launches in a step of every kernel and copy, the longest first."""
    with steps_of(task) as arms:
        return {"task": task.to_dict()} | {
            name: _profile(step, steps) for name, step in arms.items()
        }


def _profile(step: Any, steps: int) -> dict[str, Any]:
    from torch.profiler import ProfilerActivity, profile

    for number in range(WARM):
        step(number)
    tvm.cuda().sync()
    with profile(activities=[ProfilerActivity.CUDA]) as seen:
        began = time.perf_counter()
        for number in range(steps):
            step(number)
        tvm.cuda().sync()
        wall = time.perf_counter() - began
    events = sorted(seen.key_averages(), key=lambda event: -event.self_device_time_total)
    return {
        "wall_us": wall / steps * 1e6,
        "busy_us": sum(event.self_device_time_total for event in events) / steps,
        "launches": sum(event.count for event in events) / steps,
        "kernels": [
            [event.key[:90], event.count / steps, event.self_device_time_total / steps]
            for event in events
            if event.self_device_time_total
        ],
    }
