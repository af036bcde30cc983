# SPDX-License-Identifier: Apache-2.0
"""Time on a CUDA device, and arrays there."""

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import tvm

from sparsetrain import runtime

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


def on_device(array: np.ndarray) -> Any:
    """A copy of an array on the device."""
    return runtime.moved(runtime.as_tensor(array), tvm.cuda(), "the benchmark's arrays")


def copying_rate() -> float:
    """Bytes read and written in a second by a copy of a gigabyte of random numbers."""
    numbers = np.random.default_rng(0).random(COPIED // 4, dtype=np.float32)
    source, target = on_device(numbers), on_device(numbers)
    return 2 * COPIED / seconds_of(lambda _: runtime.copy_(target, source), 20)


def scaled(figures: dict[Any, float], factor: float) -> dict[str, float]:
    """Figures in another unit."""
    return {str(name): value * factor for name, value in figures.items()}
