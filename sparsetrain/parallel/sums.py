# SPDX-License-Identifier: Apache-2.0
"""Sums of a step over parts and ranks: dense gradients in one buffer, and the exact norm.

Sums over the batch follow one binary tree over its parts, whichever rank computes them, so their
bits do not depend on the number of ranks. A part without rows adds -0.0, which changes no sum.
"""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction
from math import prod, sqrt
from typing import Any

import numpy as np

from sparsetrain import runtime
from sparsetrain.optim.gradients import block_squares
from sparsetrain.parallel.comm import Comm
from sparsetrain.runtime import NDArray
from sparsetrain.runtime.tensors import tensor_at
from sparsetrain.sparse_tensor import RowSparse
from sparsetrain.sparse_tensor.coalesce import row_squares

_LINE = 16  # float32 numbers per cache line; each gradient begins on a new line
_LOW = 26  # low bits of a float64's 53-bit mantissa
_BIAS, _BINS = 1100, 2200  # offset and number of exponents
_INFINITE = _BINS - 1  # a bin that no exponent uses, for non-finite numbers


class DenseSums:
    """Dense gradients and one number, such as the loss, of one or several parts, in one buffer.

    Parameters
    ----------
    shapes : mapping of str to tuple of int
        Shapes of the gradients.
    """

    def __init__(self, shapes: Mapping[str, tuple[int, ...]]) -> None:
        sizes = [-(-prod(shape) // _LINE) * _LINE for shape in shapes.values()]
        ends = np.cumsum([*sizes, 1]).tolist()
        self._memory = runtime.empty((ends[-1],), "float32")
        self.buffer = runtime.as_numpy(self._memory, writable=True)
        self.buffer[...] = -0.0
        begins = dict(zip(shapes, [0, *ends], strict=False))
        self._views = {
            name: self.buffer[begins[name] :][: prod(shape)].reshape(shape)
            for name, shape in shapes.items()
        }
        self.gradients: dict[str, NDArray] = {n: tensor_at(v) for n, v in self._views.items()}
        self.number = self.buffer[-1:]

    def fill_(
        self, gradients: Mapping[str, Any], number: Any, factors: Mapping[str, Any]
    ) -> DenseSums:
        """Copy a part's gradients, each times its factor (1 by default), and its number."""
        for name, view in self._views.items():
            np.multiply(runtime.as_numpy(gradients[name]), factors.get(name, 1), out=view)
        self.number[...] = number
        return self

    def clear_(self) -> DenseSums:
        """Reset this to the sum of no parts: -0.0 everywhere."""
        self.buffer[...] = -0.0
        return self

    def add_(self, other: DenseSums) -> DenseSums:
        """Add the sums of other parts."""
        np.add(self.buffer, other.buffer, out=self.buffer)
        return self


def exact_norm(gradients: Mapping[str, Any], comm: Comm) -> float:
    """Return the global norm of gradients, to the same bits for any number of ranks.

    The float64 squared norms of rows and of dense blocks are summed without rounding: as integers,
    with one sum per exponent. So the order and the owners of rows do not matter.
    """
    bins = np.zeros((2, _BINS), np.int64)
    for gradient in gradients.values():
        if isinstance(gradient, RowSparse):
            _add_(bins, row_squares(gradient.values))
        elif comm.rank == 0:
            _add_(bins, block_squares(gradient))
    comm.tree_sum_(bins.reshape(-1))
    if bins[0, _INFINITE]:
        return float("inf")
    total = sum(
        int(count) * Fraction(2) ** (int(place) - _BIAS - 53 + _LOW * high)
        for high, row in enumerate(bins)
        for place, count in zip(np.flatnonzero(row), row[row != 0], strict=True)
    )
    return sqrt(total)


def _add_(bins: np.ndarray, numbers: np.ndarray) -> None:
    if not np.isfinite(numbers).all():
        bins[0, _INFINITE] += 1
        return
    mantissas, exponents = np.frexp(numbers)
    whole = (mantissas * 2.0**53).astype(np.int64)
    for row, part in zip(bins, (whole & (1 << _LOW) - 1, whole >> _LOW), strict=True):
        # Float64 holds sums of up to 2**26 such numbers exactly.
        row += np.bincount(exponents + _BIAS, part, minlength=_BINS).astype(np.int64)
