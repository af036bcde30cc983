# SPDX-License-Identifier: Apache-2.0
"""Time on a CUDA device, and arrays there."""

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import tvm

from sparsetrain import runtime
from sparsetrain.runtime.tensors import copy_, to_device

WARM = 3
COPIED = 2**30  # bytes, several times what the device's caches hold


def seconds_of(run: Callable[[int], Any], count: int) -> float:
    """Of one call, the mean of `count`, after a few to warm up; the device is waited for."""
    for number in range(WARM):
        run(number)
    tvm.cuda().sync()
    began = time.perf_counter()
    for number in range(WARM, WARM + count):
        run(number)
    tvm.cuda().sync()
    return (time.perf_counter() - began) / count


def torch_on_gpu() -> Any:
    """PyTorch, if it is installed and sees the device."""
    try:
        import torch
    except ModuleNotFoundError:
        return None
    return torch if torch.cuda.is_available() else None


def kernels_of(run: Callable[[int], Any], count: int) -> dict[str, Any] | None:
    """Microseconds and launches of every kernel and copy of one call, the longest first.

    PyTorch's profiler sees the launches of the whole process, ours too; None without it.
    """
    if torch_on_gpu() is None:
        return None
    from torch.profiler import ProfilerActivity, profile

    for number in range(WARM):
        run(number)
    tvm.cuda().sync()
    with profile(activities=[ProfilerActivity.CUDA]) as seen:
        began = time.perf_counter()
        for number in range(count):
            run(number)
        tvm.cuda().sync()
        wall = time.perf_counter() - began
    events = sorted(seen.key_averages(), key=lambda event: -event.self_device_time_total)
    return {
        "wall_us": wall / count * 1e6,
        "busy_us": sum(event.self_device_time_total for event in events) / count,
        "launches": sum(event.count for event in events) / count,
        "kernels": [
            [event.key[:90], event.count / count, event.self_device_time_total / count]
            for event in events
            if event.self_device_time_total
        ],
    }


def on_device(array: np.ndarray) -> Any:
    """A copy of an array on the device."""
    return to_device(runtime.as_tensor(array), tvm.cuda(), "the benchmark's arrays")


def copying_rate() -> float:
    """Bytes read and written in a second by a copy of a gigabyte of random numbers."""
    numbers = np.random.default_rng(0).random(COPIED // 4, dtype=np.float32)
    source, target = on_device(numbers), on_device(numbers)
    return 2 * COPIED / seconds_of(lambda _: copy_(target, source), 20)


def scaled(figures: dict[Any, float], factor: float) -> dict[str, float]:
    """Figures in another unit."""
    return {str(name): value * factor for name, value in figures.items()}
