# SPDX-License-Identifier: Apache-2.0
"""Epilogues that write fewer or more elements than their product has, in TVM and NumPy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from tvm import relax


class Reshaped(NamedTuple):
    """An operator on a matrix, and what it is to do."""

    operator: Callable[[relax.Expr], relax.Expr]
    reference: Callable[[np.ndarray], np.ndarray]


def _first(axis: int, count: int) -> Reshaped:
    def reference(array: Any) -> Any:
        return np.take(array, range(count), axis)

    return Reshaped(lambda out: relax.op.strided_slice(out, [axis], [0], [count]), reference)


RESHAPED = {
    "rows": _first(0, 7),
    "columns": _first(1, 13),
    "padding": Reshaped(
        lambda out: relax.op.nn.pad(out, (0, 0, 0, 4)),
        lambda array: np.pad(array, ((0, 0), (0, 4))),
    ),
}
