# SPDX-License-Identifier: Apache-2.0
"""The CUDA kernel of `put_rows`: each block owns a range of rows, and goes through all places.

A block reads places by chunks of one for each thread. Where a chunk has places of the block's rows,
every thread goes through the chunk in order and takes what is for its own rows and columns; so
each element has one writer, and sums have one order. No atomics, nothing is sorted.

What is parallel: ranges of rows, by blocks; rows of a range and their columns, by threads. Cost:
every block reads all places, from the second cache; a chunk without any costs two barriers.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from tvm import tirx
from tvm.script.ir_builder import tirx as T
from tvm.tirx import PrimFunc

from sparsetrain.indexing.combine import COMBINE
from sparsetrain.kernel_builder import buffer, extents, kernel
from sparsetrain.sparse_tensor.cuda.parts import THREADS, barrier, blocks_of_threads, shared

BLOCKS = 1024  # at most: about what an H200 runs at once


@cache
def put_rows_kernel(width: int, dtype: str, reduction: str) -> PrimFunc:
    """``out = data``, then ``out[places[n]]`` with ``updates[n]``, in the order of n."""
    combine = COMBINE[reduction]
    lanes = min(width, THREADS)  # threads of a row
    groups = THREADS // lanes  # rows at once
    with kernel("put_rows") as built:
        height, count = extents(2)
        data = buffer("data", (height, width), dtype)
        places = buffer("places", (count,), "int64")
        updates = buffer("updates", (count, width), dtype)
        out = buffer("out", (height, width), dtype)
        blocks = tirx.min(tirx.ceildiv(height, groups), BLOCKS)
        with blocks_of_threads(blocks) as (block, thread):
            step = T.Bind(tirx.ceildiv(height, tirx.max(blocks, 1)))
            first = T.Bind(tirx.min(block * step, height))
            behind = T.Bind(tirx.min(first + step, height))
            group, lane = tirx.floordiv(thread, lanes), tirx.floormod(thread, lanes)

            def put(row: Any, n: Any) -> None:
                mine = tirx.floormod(row - first, groups) == group
                with T.If(tirx.And(_within(row, first, behind), mine)), T.Then():
                    _columns(out, row, lane, lambda d: combine(out[row, d], updates[n, d]))

            with T.serial(0, tirx.ceildiv(behind - first, groups)) as turn:
                row = T.Bind(first + turn * groups + group)
                with T.If(tirx.And(row < behind, group < groups)), T.Then():
                    _columns(out, row, lane, lambda d: data[row, d])
            _each_place(places, first, behind, thread, put)
    return built.get()


def _columns(out: Any, row: Any, lane: Any, value: Any) -> None:
    """Write a thread's columns of a row."""
    width = int(out.shape[1])
    with T.serial(0, (width + THREADS - 1) // THREADS) as turn:
        column = T.Bind(turn * THREADS + lane)
        with T.If(column < width), T.Then():
            T.buffer_store(out, value(column), [row, column])


def _within(row: Any, first: Any, behind: Any) -> Any:
    return tirx.And(row >= first, row < behind)


def _each_place(places: Any, first: Any, behind: Any, thread: Any, put: Any) -> None:
    """Let every thread of a block have all places of its rows, in order; of others some."""
    count = places.shape[0]
    chunk, found = shared(THREADS, "int64"), shared(1, "int64")
    with T.If(thread == 0), T.Then():
        T.buffer_store(found, tirx.const(0, "int64"), [0])
    barrier()
    with T.serial(0, tirx.ceildiv(count, THREADS)) as turn:
        begin = T.Bind(turn * THREADS)
        with T.If(begin + thread < count), T.Then():
            place = T.Bind(places[begin + thread])
            T.buffer_store(chunk, place, [thread])
            with T.If(_within(place, first, behind)), T.Then():
                T.buffer_store(found, begin + 1, [0])  # whoever writes, writes the same
        barrier()
        size, none = tirx.min(count - begin, THREADS), tirx.const(0, "int64")
        some = T.Bind(tirx.Select(found[0] == begin + 1, size, none))
        with T.serial(0, some) as n:
            put(T.Bind(chunk[n]), begin + n)
        barrier()
