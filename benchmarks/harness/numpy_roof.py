# SPDX-License-Identifier: Apache-2.0
"""NumPy's product of the roof's operands, in a process of its own: BLAS threads spin."""

from typing import Any

import numpy as np

from harness.task import Task
from harness.timing import MOST_CALLS, gemm_operands, timed_calls


class NumpyRoof:
    """NumPy with its BLAS on all cores that the worker may use."""

    def __init__(self, task: Task) -> None:
        del task  # the worker confined the process before NumPy was imported
        self._left, self._right = gemm_operands()

    def turn(self, warm: int, timed: int) -> dict[str, Any]:
        return {"gemm": timed_calls(self._product, warm, min(timed, MOST_CALLS))}

    def about(self) -> dict[str, Any]:
        return {"versions": {"numpy": np.__version__}}

    def _product(self) -> np.ndarray:
        return self._left @ self._right.T
