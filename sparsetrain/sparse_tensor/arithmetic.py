# SPDX-License-Identifier: Apache-2.0
"""`Arithmetic`: operators, norm and comparison of row-sparse tensors, like those of sparse arrays.

Every method that reads summed values coalesces first. Time and memory depend on the number of
entries, never on the rows of the dense tensor.
"""

from __future__ import annotations

import math
import operator
from typing import TYPE_CHECKING, Any

import numpy as np

from sparsetrain import runtime
from sparsetrain.errors import DataError
from sparsetrain.sparse_tensor import algebra, checks
from sparsetrain.sparse_tensor.algebra import eager
from sparsetrain.sparse_tensor.coalesce import squared_norm

if TYPE_CHECKING:
    from typing_extensions import Self


class Arithmetic:
    """Base class with the arithmetic of `RowSparse`."""

    indices: Any
    values: Any
    source: Any
    num_rows: int
    shape: tuple[int, ...]
    dtype: Any
    coalesce: Any
    __array_ufunc__ = None  # makes NumPy call `__rmul__` for `array * tensor`
    __iter__ = None  # iterating would visit all rows of the dense tensor

    def scale(self, factor: Any) -> Self:
        """Multiply every value by `factor` (a number, or a Relax scalar while tracing).

        Raises
        ------
        DataError
            If `factor` is neither a number nor a scalar.
        """
        checks.check_factor(factor)
        return eager(algebra.scale, self, factor)

    def cast(self, dtype: str) -> Self:
        """Cast the values to a floating dtype, given by name."""
        checks.check_floating(dtype)
        return eager(algebra.cast, self, dtype)

    def concat(self, other: Self) -> Self:
        """Return the sum of tensors of equal shape and dtype: all entries of both, not coalesced.

        Raises
        ------
        DataError
            If shapes or dtypes differ.
        """
        return eager(algebra.concat, self, other)

    def __add__(self, other: Any) -> Self:
        return self.concat(other) if isinstance(other, type(self)) else NotImplemented

    def __sub__(self, other: Any) -> Self:
        return self.concat(-other) if isinstance(other, type(self)) else NotImplemented

    def __neg__(self) -> Self:
        return self.scale(-1.0)

    def __mul__(self, factor: Any) -> Self:
        return self.scale(factor)

    __rmul__ = __mul__

    def __truediv__(self, divisor: Any) -> Self:
        checks.check_factor(divisor)
        return eager(algebra.divide, self, divisor)

    def __getitem__(self, row: int) -> np.ndarray:
        """Return one row of the dense (num_rows, D) tensor as an array (D,); -1 is the last.

        Raises
        ------
        IndexError, TypeError
            If there is no such row, or `row` is not an integer.
        """
        try:
            number = operator.index(row)
        except TypeError:
            raise TypeError(
                f"RowSparse: [row] takes the number of one row, not {row!r:.40}"
            ) from None
        if not -self.num_rows <= number < self.num_rows:
            raise IndexError(f"row {number} of a RowSparse with {self.num_rows} rows")
        indices, values = runtime.as_numpy(self.indices), runtime.as_numpy(self.values)
        found = np.flatnonzero(indices == number % self.num_rows)
        if self.source is not None:
            found = runtime.as_numpy(self.source)[found]
        return values[found].sum(axis=0)

    def squared_norm(self) -> float:
        """Return the sum of squares of the dense tensor in float64; duplicates are summed first."""
        return squared_norm(self.coalesce().values)

    def norm(self) -> float:
        """Return the Euclidean norm of the dense tensor; duplicates are summed first."""
        return math.sqrt(self.squared_norm())

    def clip(self, low: float, high: float) -> Self:
        """Limit the dense tensor's elements to [low, high]; the result is coalesced.

        Raises
        ------
        DataError
            If 0 is outside the range: rows without an entry would no longer be zero.
        """
        if not low <= 0 <= high:
            raise DataError(f"RowSparse.clip: 0 is outside [{low}, {high}]; every row would change")
        return eager(algebra.clip, self.coalesce(), low, high)

    def isfinite(self) -> bool:
        """Whether every element of the dense tensor is finite."""
        return bool(np.isfinite(runtime.as_numpy(self.coalesce().values)).all())

    def equal(self, other: Self) -> bool:
        """Return whether both represent the same dense tensor: shape, dtype and every number.

        Duplicates are summed first. A row of zeros equals a row without entries.

        Raises
        ------
        DataError
            If `other` is not a `RowSparse`.
        """
        _require_own_kind(self, other, "equal")
        if (self.shape, self.dtype) != (other.shape, other.dtype):
            return False
        own, its = _aligned(self, other)
        return np.array_equal(own, its)

    def allclose(self, other: Self, rtol: float = 1e-5, atol: float = 1e-8) -> bool:
        """Return whether all elements are close by the rule of `numpy.allclose`; see `equal`.

        Raises
        ------
        DataError
            If the shapes differ, or `other` is not a `RowSparse`.
        """
        _require_own_kind(self, other, "allclose")
        if self.shape != other.shape:
            raise DataError(f"RowSparse.allclose: shapes {self.shape} and {other.shape} differ")
        own, its = _aligned(self, other)
        return np.allclose(own, its, rtol=rtol, atol=atol)


def _require_own_kind(tensor: Arithmetic, other: object, method: str) -> None:
    if not isinstance(other, type(tensor)):
        raise DataError(f"RowSparse.{method} takes a RowSparse, not a {type(other).__name__}")


def _aligned(left: Arithmetic, right: Arithmetic) -> tuple[np.ndarray, np.ndarray]:
    """Return the values of both on the union of their rows, (U, D) each."""
    tensors = left.coalesce(), right.coalesce()
    first, second = (runtime.as_numpy(tensor.indices) for tensor in tensors)
    union = np.union1d(first, second)
    return _spread(tensors[0], first, union), _spread(tensors[1], second, union)


def _spread(tensor: Arithmetic, own: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """Return a coalesced tensor's values at `rows`, a superset of its `own` rows."""
    values = runtime.as_numpy(tensor.values)
    spread = np.zeros((len(rows), values.shape[1]), values.dtype)
    spread[np.searchsorted(rows, own)] = values
    return spread
