# SPDX-License-Identifier: Apache-2.0
"""Coalescing: the touched rows, and the order in which their duplicates are summed.

A `CoalescePlan` depends on the ids alone, so it can be made before the values exist. Cost: a sort
of N ids, independent of the table's length.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from sparsetrain import runtime
from sparsetrain.backend import backend_at
from sparsetrain.runtime import NDArray
from sparsetrain.runtime.tensors import leading_rows

# From this many ids on, all threads share one sort, and read each other's results after every
# digit. On Zen 3, with a million rows, one thread sorts 16,384 ids in 162 us and two threads in 287
# us; for 53,248 ids these are 640 and 567 us.
SHARED_FROM = 32_768


class CoalescePlan:
    """The positions of each unique row's entries.

    The entries of ``rows[u]`` are ``order[offsets[u]:offsets[u + 1]]``, first to last. Padding is
    at the end of `order` and belongs to no row.

    Parameters
    ----------
    rows : (U,) int32 or int64
        Unique row numbers in ascending order.
    order : (N,) int32
        Entry numbers, sorted by row; entries of one row keep their order.
    offsets : (U + 1,) int32
        Beginning of each run in `order`.
    num_unique : int, optional
        U, the number of unique rows, if `rows` and `offsets` are longer.
    index_dtype : str, optional
        Dtype of `rows`, if known: reading it from a tensor takes a microsecond.

    Attributes
    ----------
    arrays : tuple of Tensor
        Rows, order, offsets, at full capacity. A kernel that takes U uses them directly: views of
        the right length cost as much as sorting a thousand ids.
    """

    __slots__ = ("_index_dtype", "arrays", "num_unique")

    def __init__(
        self,
        rows: NDArray,
        order: NDArray,
        offsets: NDArray,
        num_unique: int | None = None,
        index_dtype: str | None = None,
    ) -> None:
        self.arrays = rows, order, offsets
        self.num_unique = int(rows.shape[0]) if num_unique is None else num_unique
        self._index_dtype = index_dtype

    @property
    def index_dtype(self) -> str:
        """Dtype of `rows`."""
        return self._index_dtype or str(self.arrays[0].dtype)

    @property
    def rows(self) -> NDArray:
        """Unique row numbers (U,)."""
        return leading_rows(self.arrays[0], self.num_unique)

    @property
    def order(self) -> NDArray:
        """Entry numbers (N,)."""
        return self.arrays[1]

    @property
    def offsets(self) -> NDArray:
        """Beginning of each run (U + 1,)."""
        return leading_rows(self.arrays[2], self.num_unique + 1)


def make_plan(indices: NDArray, num_rows: int, *, parallel: bool = True) -> CoalescePlan:
    """Sort `indices` (N,) and find the runs.

    Parameters
    ----------
    indices : Tensor (N,) int32 or int64
        Row numbers; `num_rows` itself is padding.
    num_rows : int
        Rows of the tensor.
    parallel : bool
        Whether to use the kernels' threads. Otherwise this can run on a separate thread beside a
        step; the plan is the same.

    Raises
    ------
    DataError
        If an index is outside [0, num_rows].
    """
    plan: CoalescePlan = backend_at(indices).coalescing.make_plan(indices, num_rows, parallel)
    return plan


def chunks_for(count: int) -> int:
    """Return the number of threads that sort this many ids."""
    return runtime.num_threads() if count >= SHARED_FROM else 1


def segment_sum(plan: CoalescePlan, values: NDArray, source: NDArray | None) -> NDArray:
    """Sum value rows (M, D) into (U, D), each run of equal ids in a fixed order."""
    summed: NDArray = backend_at(values).coalescing.segment_sum(plan, values, source)
    return summed


def rows_below(plan: CoalescePlan, edges: Sequence[int]) -> list[int]:
    """Return the number of the plan's rows below each row number in `edges`."""
    found: list[int] = backend_at(plan.order).coalescing.rows_below(plan, edges)
    return found


def same_ids(known: NDArray, ids: NDArray) -> bool:
    """Whether two arrays (N,) on the same device hold the same ids."""
    same: bool = backend_at(ids).coalescing.same_ids(known, ids)
    return same


def squared_norm(values: NDArray) -> float:
    """Return the sum of squares of (U, D) values, in float64 and an order fixed by U and D."""
    return float(np.sum(row_squares(values)))


def row_squares(values: NDArray) -> np.ndarray:
    """Return the sums of squares (U,) of rows (U, D), in float64 and an order fixed by D."""
    squares: np.ndarray = backend_at(values).coalescing.row_squares(values)
    return squares
