# SPDX-License-Identifier: Apache-2.0
"""Timed calls, and the matrix product of the GEMM roof."""

import time
from collections.abc import Callable
from typing import Any

import numpy as np

GEMM_SHAPE = (2048, 1024, 1024)  # rows, columns, and the length that is summed over
GEMM_FLOPS = 2 * GEMM_SHAPE[0] * GEMM_SHAPE[1] * GEMM_SHAPE[2]

MOST_CALLS = 10  # of a roof in one turn


def timed_calls(run: Callable[[], Any], warm: int, timed: int) -> list[float]:
    """Seconds of each of `timed` calls, after `warm` others."""
    seconds = []
    for _ in range(warm + timed):
        began = time.perf_counter()
        run()
        seconds.append(time.perf_counter() - began)
    return seconds[warm:]


def gemm_operands() -> tuple[np.ndarray, np.ndarray]:
    """Left (M, K) and right (N, K), as a linear layer has them."""
    m, n, k = GEMM_SHAPE
    rng = np.random.default_rng(0)
    left, right = (rng.standard_normal(shape, dtype=np.float32) for shape in ((m, k), (n, k)))
    return left, right
