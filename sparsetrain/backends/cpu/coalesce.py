# SPDX-License-Identifier: Apache-2.0
"""Coalescing on a CPU, called by `sparse_tensor.coalesce`."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from sparsetrain import runtime
from sparsetrain.errors import DataError
from sparsetrain.runtime import NDArray
from sparsetrain.runtime.compiling import host_kernel
from sparsetrain.runtime.tensors import reshape_view
from sparsetrain.sparse_tensor import segment_kernels
from sparsetrain.sparse_tensor.coalesce import CoalescePlan, chunks_for
from sparsetrain.sparse_tensor.plan_kernel import CHUNK_NOTES, plan_kernel


def make_plan(indices: NDArray, num_rows: int, parallel: bool) -> CoalescePlan:
    """Sort the ids with a radix sort, on all threads if `parallel` and there are many ids."""
    count, index_dtype = int(indices.shape[0]), str(indices.dtype)
    chunks = chunks_for(count) if parallel else 1
    rows = runtime.empty((count,), index_dtype)
    order = runtime.empty((2, count), "int32")
    offsets = runtime.empty((count + 1,), "int32")
    keys = runtime.empty((2 * count,), index_dtype)
    notes = runtime.empty((chunks, CHUNK_NOTES), "int32")
    counts = runtime.empty((2,), "int32")
    sort_ = _plan_kernel(index_dtype, chunks > 1)
    sort_(indices, keys, order, notes, rows, offsets, counts, num_rows)
    used, outside = runtime.as_numpy(counts).tolist()
    if outside:
        raise DataError(f"{outside} of {count} row indices lie outside the {num_rows} rows")
    return CoalescePlan(rows, reshape_view(order, (count,)), offsets, used, index_dtype)


def segment_sum(plan: CoalescePlan, values: NDArray, source: NDArray | None) -> NDArray:
    """Sum value rows (M, D) into (U, D); each row sums a run of equal ids in a fixed order."""
    width, dtype = int(values.shape[1]), str(values.dtype)
    out = runtime.empty((plan.num_unique, width), dtype)
    kernel = _segment_sum(width, dtype, source is not None)
    kernel(plan.order, plan.offsets, plan.order if source is None else source, values, out)
    return out


def row_squares(values: NDArray) -> np.ndarray:
    """Return the sum of squares of each row of `values` (U, D), as float64 (U,)."""
    partial = runtime.empty((int(values.shape[0]),), "float64")
    _row_squares(int(values.shape[1]), str(values.dtype))(values, partial)
    return runtime.as_numpy(partial)


def rows_below(plan: CoalescePlan, edges: Sequence[int]) -> list[int]:
    """Return for each edge how many of the plan's row numbers are below it."""
    return np.searchsorted(runtime.as_numpy(plan.rows), edges).tolist()


def same_ids(known: NDArray, ids: NDArray) -> bool:
    """Whether two arrays hold the same ids."""
    return np.array_equal(runtime.as_numpy(known), runtime.as_numpy(ids))


_plan_kernel = host_kernel("sort of rows", plan_kernel)
_segment_sum = host_kernel("sum of equal rows", segment_kernels.segment_sum_kernel)
_row_squares = host_kernel("sum of squares", segment_kernels.row_squares_kernel)
