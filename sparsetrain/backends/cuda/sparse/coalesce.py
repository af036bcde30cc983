# SPDX-License-Identifier: Apache-2.0
"""Coalescing on a CUDA device, called by `sparse_tensor.coalesce`.

The ids never leave the device. A sort copies only two numbers back to the host: the number of
unique rows, which determines the shapes of the plan, and the number of ids outside the table.
Scratch memory comes from TVM's pool, so repeated steps of one size allocate nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import numpy as np

from sparsetrain import runtime
from sparsetrain.backends.cuda.sparse.coalesce_plan import plan_kernel, short_plan_kernel
from sparsetrain.backends.cuda.sparse.row_kernels import (
    differ_kernel,
    row_squares_kernel,
    rows_below_kernel,
)
from sparsetrain.backends.cuda.sparse.runs import CHUNK, chunk_sums_kernel, segment_sum_kernel
from sparsetrain.backends.cuda.sparse.sort import blocks_of
from sparsetrain.backends.cuda.sparse.tile import DIGIT_BITS, DIGITS, TILE
from sparsetrain.errors import DataError
from sparsetrain.runtime import NDArray
from sparsetrain.runtime.compiling import target_kernel
from sparsetrain.runtime.pool import scratch_tensor
from sparsetrain.runtime.tensors import leading_rows, reshape_view, target_of, to_device
from sparsetrain.sparse_tensor.coalesce import CoalescePlan
from sparsetrain.sparse_tensor.plan_kernel import digits_of

Arrays = tuple[NDArray, NDArray, NDArray]


class DeviceSort:
    """A sort of N ids on a device, with memory for its plan and scratch memory.

    It can be used again to sort new ids, without allocating. The new plan then overwrites the
    previous plan, after all kernels launched before have read it.

    Parameters
    ----------
    indices : Tensor (N,) int32 or int64
        Ids with the shape and dtype of the ids that will be sorted.
    num_rows : int
        Number of rows of the table.
    """

    def __init__(self, indices: NDArray, num_rows: int) -> None:
        count, index_dtype = int(indices.shape[0]), str(indices.dtype)
        target = target_of(indices)
        passes, bits = digits_of(num_rows, index_dtype, DIGIT_BITS)

        def made(shape: tuple[int, ...], dtype: str = "int32") -> NDArray:
            return scratch_tensor(shape, dtype, indices)

        self._kind = indices.shape, indices.dtype, num_rows
        keys, order = made((2, count), index_dtype), made((2, count))
        self._rows, self._offsets = made((count,), index_dtype), made((count + 1,))
        self._order, self._counts = reshape_view(order, (count,)), made((2,))
        self._arrays: tuple[NDArray, ...] = keys, order, self._rows, self._offsets, self._counts
        self._numbers: tuple[int, ...] = passes, bits, num_rows
        if count <= TILE:
            self._run = _short_plan(target, index_dtype)
        else:
            blocks, share = blocks_of(count)
            self._run = _plan(target, index_dtype)
            self._arrays += made((blocks, DIGITS)), made((2, blocks))
            self._numbers += (share,)

    def fits(self, indices: NDArray, num_rows: int) -> bool:
        """Whether this sort was made for ids of this shape and dtype and a table of this size."""
        return (indices.shape, indices.dtype, num_rows) == self._kind

    def begin(self, indices: NDArray) -> None:
        """Launch the sort without waiting for its result."""
        self._run(indices, *self._arrays, *self._numbers)

    def wait(self) -> Arrays:
        """Wait for the sort; return the rows, order and offsets of the `CoalescePlan`.

        Raises
        ------
        DataError
            If an id is outside [0, num_rows].
        """
        used, outside = runtime.as_numpy(self._counts).tolist()
        if outside:
            (count,), _, num_rows = self._kind
            raise DataError(f"{outside} of {count} row indices lie outside the {num_rows} rows")
        rows = leading_rows(self._rows, used)
        return rows, self._order, leading_rows(self._offsets, used + 1)


def make_plan(indices: NDArray, num_rows: int, parallel: bool) -> CoalescePlan:
    """Sort the ids on the device."""
    sort = DeviceSort(indices, num_rows)
    sort.begin(indices)
    return CoalescePlan(*sort.wait())


def chunk_sums(
    plan: CoalescePlan, values: NDArray, source: NDArray | None
) -> tuple[NDArray, NDArray]:
    """Return the sums of each chunk of 32 and of 1024 entries that is within a run of equal ids."""
    count, (_, width) = int(plan.order.shape[0]), map(int, values.shape)
    dtype = str(values.dtype)
    chunks = scratch_tensor((_chunks(count, CHUNK), width), dtype, values)
    blocks = scratch_tensor((_chunks(count, CHUNK**2), width), dtype, values)
    run = _chunk_sums(target_of(values), width, dtype, source is not None)
    run(plan.order, plan.offsets, _or_order(source, plan), values, chunks, blocks)
    return chunks, blocks


def segment_sum(plan: CoalescePlan, values: NDArray, source: NDArray | None) -> NDArray:
    """Sum value rows (M, D) into (U, D); each row sums a run of equal ids in a fixed order."""
    width, dtype = int(values.shape[1]), str(values.dtype)
    # Allocate the largest possible size, because the pool keeps memory for every size it has seen.
    most = scratch_tensor((int(plan.order.shape[0]), width), dtype, values)
    out = leading_rows(most, plan.num_unique)
    run = _segment_sum(target_of(values), width, dtype, source is not None)
    sums = chunk_sums(plan, values, source)
    run(plan.order, plan.offsets, _or_order(source, plan), values, *sums, out)
    return out


def row_squares(values: NDArray) -> np.ndarray:
    """Return the sum of squares of each row of `values` (U, D), as float64 (U,)."""
    partial = scratch_tensor((int(values.shape[0]),), "float64", values)
    target = target_of(values)
    _row_squares(target, int(values.shape[1]), str(values.dtype))(values, partial)
    return runtime.as_numpy(partial)


def rows_below(plan: CoalescePlan, edges: Sequence[int]) -> list[int]:
    """Count the plan's row numbers below each edge on the device; copy the counts to the host."""
    rows, given = plan.arrays[0], to_device(_as_tensor(tuple(edges)), plan.order.device)
    below = scratch_tensor((len(edges),), "int64", rows)
    _rows_below(target_of(rows), str(rows.dtype))(rows, given, below, plan.num_unique)
    return list(map(int, runtime.as_numpy(below)))


def same_ids(known: NDArray, ids: NDArray) -> bool:
    """Whether both arrays hold the same ids; compared on the device unless they share memory."""
    if (known.shape, known.dtype) != (ids.shape, ids.dtype):
        return False
    if known.data_ptr() == ids.data_ptr():
        return True
    found = scratch_tensor((1,), "int32", ids)
    _differ(target_of(ids), str(ids.dtype))(known, ids, found)
    return not runtime.as_numpy(found)[0]


@lru_cache(maxsize=16)
def _as_tensor(edges: tuple[int, ...]) -> NDArray:
    return runtime.as_tensor(np.array(edges, np.int64))


def _chunks(count: int, size: int) -> int:
    return max(1, -(-count // size))


def _or_order(source: NDArray | None, plan: CoalescePlan) -> NDArray:
    return plan.order if source is None else source


_short_plan = target_kernel("short_plan", short_plan_kernel)
_plan = target_kernel("plan", plan_kernel)
_chunk_sums = target_kernel("chunk_sums", chunk_sums_kernel)
_segment_sum = target_kernel("segment_sum", segment_sum_kernel)
_rows_below = target_kernel("rows_below", rows_below_kernel)
_differ = target_kernel("differ", differ_kernel)
_row_squares = target_kernel("row_squares", row_squares_kernel)
