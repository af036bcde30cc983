# SPDX-License-Identifier: Apache-2.0
"""Building blocks that CUDA kernels share: launches, vectors, barriers."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tvm import tirx
from tvm.script.ir_builder import tirx as T

from sparsetrain.kernels.loops import Columns

THREADS = 256  # threads per block: eight warps


@contextmanager
def blocks_of_threads(
    blocks: Any, threads: int = THREADS, dtype: str = "int64"
) -> Iterator[tuple[Any, Any]]:
    """Launch at least one block; yield the indices of block (int64) and thread (`dtype`)."""
    count = tirx.max(tirx.Cast("int64", blocks), tirx.const(1, "int64"))
    span = tirx.const(0, dtype), tirx.const(threads, dtype)
    with (
        T.thread_binding(tirx.const(0, "int64"), count, thread="blockIdx.x") as block,
        T.thread_binding(*span, thread="threadIdx.x") as thread,
    ):
        yield block, thread


@contextmanager
def each_of(total: Any) -> Iterator[Any]:
    """Launch a thread for each number below `total`; yield the number."""
    with blocks_of_threads(tirx.ceildiv(total, THREADS)) as (block, thread):
        number = T.Bind(block * THREADS + thread)
        with T.If(number < total), T.Then():
            yield number


def vector_lanes(width: int, dtype: str) -> int:
    """Return how many columns a thread loads at once: 16 bytes, or fewer if `width` requires it."""
    widest = {"float32": 4, "float64": 2}.get(dtype, 1)
    return next(lanes for lanes in (4, 2, 1) if lanes <= widest and width % lanes == 0)


@contextmanager
def each_vector(rows: Any, width: int, dtype: str) -> Iterator[tuple[Any, Any, int]]:
    """Launch a thread per vector of each row; yield row, first column and number of columns."""
    lanes = vector_lanes(width, dtype)
    vectors = width // lanes
    with each_of(rows * vectors) as number:
        row = T.Bind(tirx.floordiv(number, vectors))
        yield row, T.Bind(tirx.floormod(number, vectors) * lanes), lanes


@contextmanager
def each_row(rows: Any, width: int) -> Iterator[tuple[Any, Columns]]:
    """Launch a thread per column of each row; yield the row, and a "loop" over this one column."""
    with each_of(rows * width) as number:
        row = T.Bind(tirx.floordiv(number, tirx.const(width, "int64")))
        column = T.Bind(tirx.floormod(number, tirx.const(width, "int64")))
        yield row, lambda do: do(column)


def barrier() -> None:
    """Wait for all threads of the block; their writes to shared memory are then visible."""
    T.evaluate(tirx.call_intrin("int32", "tirx.tvm_storage_sync", "shared"))


def shared(count: int, dtype: str = "int32") -> Any:
    """Allocate a 1-D shared array; in a 2-D array, TVM would remove the padding between rows."""
    return T.alloc_buffer((count,), dtype, scope="shared")
