# SPDX-License-Identifier: Apache-2.0
"""Coalescing on a CUDA device; `coalesce` calls it for tensors that lie there.

The ids never leave the device. Two numbers come back: how many rows there are, which decides the
shapes of the plan, and how many ids lie outside the table. Scratch comes from the pool of the
virtual machine, so a step of a known size allocates nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
from tvm.tirx import PrimFunc

from sparsetrain import runtime
from sparsetrain.errors import DataError
from sparsetrain.runtime import NDArray
from sparsetrain.sparse_tensor.cuda_kernels import row_squares_kernel
from sparsetrain.sparse_tensor.cuda_plan import plan_kernel, short_plan_kernel
from sparsetrain.sparse_tensor.cuda_runs import CHUNK, chunk_sums_kernel, segment_sum_kernel
from sparsetrain.sparse_tensor.cuda_sort import blocks_of, digits_of
from sparsetrain.sparse_tensor.cuda_tile import DIGITS, TILE

Arrays = tuple[NDArray, NDArray, NDArray]


def begin_arrays(indices: NDArray, num_rows: int) -> Callable[[], Arrays]:
    """Begin to sort `indices` (N,).

    Returns
    -------
    callable
        Waits, and returns rows, order and offsets of the `CoalescePlan`. It raises `DataError` if
        an index lies outside [0, num_rows].
    """
    count, index_dtype = int(indices.shape[0]), str(indices.dtype)
    target = runtime.target_of(indices)
    # Not more bits than an index has: a shift past its width is undefined.
    passes, bits = digits_of(min(int(num_rows).bit_length(), _BITS[index_dtype]))

    def made(shape: tuple[int, ...], dtype: str = "int32") -> NDArray:
        return runtime.temporary(shape, dtype, indices)

    keys, order = made((2, count), index_dtype), made((2, count))
    rows, offsets, counts = made((count,), index_dtype), made((count + 1,)), made((2,))
    arrays = indices, keys, order, rows, offsets, counts
    if count <= TILE:
        _compiled("short_plan", target, index_dtype)(*arrays, passes, bits, num_rows)
    else:
        blocks, share = blocks_of(count)
        tallies, found = made((blocks, DIGITS)), made((2, blocks))
        sort = _compiled("plan", target, index_dtype)
        sort(*arrays, tallies, found, passes, bits, num_rows, share)

    def wait() -> Arrays:
        used, outside = map(int, runtime.as_numpy(counts))
        if outside:
            raise DataError(f"{outside} of {count} row indices lie outside the {num_rows} rows")
        return (
            runtime.leading_rows(rows, used),
            runtime.reshaped(order, (count,)),
            runtime.leading_rows(offsets, used + 1),
        )

    return wait


def chunk_sums(plan: Any, values: NDArray, source: NDArray | None) -> tuple[NDArray, NDArray]:
    """Sums of the chunks of 32 and of 1024 entries of `plan` that lie within one run."""
    count, (_, width) = int(plan.order.shape[0]), map(int, values.shape)
    dtype = str(values.dtype)
    chunks = runtime.temporary((_chunks(count, CHUNK), width), dtype, values)
    blocks = runtime.temporary((_chunks(count, CHUNK**2), width), dtype, values)
    run = _compiled("chunk_sums", runtime.target_of(values), width, dtype, source is not None)
    run(plan.order, plan.offsets, _or_order(source, plan), values, chunks, blocks)
    return chunks, blocks


def segment_sum(plan: Any, values: NDArray, source: NDArray | None) -> NDArray:
    """Sum value rows (M, D) into (U, D), each run in a fixed order."""
    width, dtype = int(values.shape[1]), str(values.dtype)
    # As long as it can get: the pool keeps a block for every size that it has seen.
    most = runtime.temporary((int(plan.order.shape[0]), width), dtype, values)
    out = runtime.leading_rows(most, plan.num_unique)
    run = _compiled("segment_sum", runtime.target_of(values), width, dtype, source is not None)
    sums = chunk_sums(plan, values, source)
    run(plan.order, plan.offsets, _or_order(source, plan), values, *sums, out)
    return out


def row_squares(values: NDArray) -> np.ndarray:
    """Sum of squares of each row of (U, D), in float64."""
    partial = runtime.temporary((int(values.shape[0]),), "float64", values)
    target = runtime.target_of(values)
    _compiled("row_squares", target, int(values.shape[1]), str(values.dtype))(values, partial)
    return runtime.as_numpy(partial)


_BITS = {"int32": 31, "int64": 63}  # of an index, without its sign


def _chunks(count: int, size: int) -> int:
    return max(1, -(-count // size))


def _or_order(source: NDArray | None, plan: Any) -> NDArray:
    return plan.order if source is None else source


_KERNELS: dict[str, Callable[..., PrimFunc]] = {
    "short_plan": short_plan_kernel,
    "plan": plan_kernel,
    "chunk_sums": chunk_sums_kernel,
    "segment_sum": segment_sum_kernel,
    "row_squares": row_squares_kernel,
}


@cache
def _compiled(name: str, target: Any, *variant: Any) -> Any:
    return runtime.compile_kernel(_KERNELS[name](*variant), target, name)
