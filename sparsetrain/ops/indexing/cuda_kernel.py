# SPDX-License-Identifier: Apache-2.0
"""The CUDA kernel of `put_rows`: a block owns a range of rows, and goes through all their places.

A block reads places by chunks of one for each thread. Where a chunk has places of the block's rows,
every thread goes through the chunk in order and takes what is for its own rows and columns; so
each element has one writer, and sums have one order. No atomics, nothing is sorted.

What is parallel: the batch, and ranges of its rows, by blocks; rows of a range and their columns,
by threads. Cost: every block reads all places of its part of the batch, from the second cache; a
chunk without any costs two barriers.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

from tvm import tirx
from tvm.script.ir_builder import tirx as T
from tvm.tirx import PrimFunc

from sparsetrain.kernels.builder import kernel
from sparsetrain.ops.indexing.put_rows_arguments import Element, PutRowsArguments
from sparsetrain.sparse_tensor.cuda.parts import THREADS, barrier, blocks_of_threads, shared

BLOCKS = 1024  # at most: about what an H200 runs at once


@cache
def put_rows_kernel(width: int, dtype: str, reduction: str, from_zero: bool = False) -> PrimFunc:
    """``out = data``, then ``out[b, places[b, n]]`` with ``updates[b, n]``, in the order of n."""
    with kernel("put_rows") as built:
        a = PutRowsArguments(width, dtype, reduction, from_zero)
        most = tirx.max(tirx.floordiv(tirx.const(BLOCKS, "int64"), tirx.max(a.batch, 1)), 1)
        ranges = tirx.max(tirx.min(tirx.ceildiv(a.height, _at_once(width)), most), 1)
        with blocks_of_threads(a.batch * ranges) as (block, thread):
            b = T.Bind(tirx.floordiv(block, ranges))
            with T.If(b < a.batch), T.Then():  # there is a block where there is nothing, too
                _write_range(a, b, block - b * ranges, ranges, thread)
    return built.get()


def _at_once(width: int) -> int:
    """Rows that a block writes at once."""
    return THREADS // min(width, THREADS)


def _write_range(a: PutRowsArguments, b: Any, number: Any, ranges: Any, thread: Any) -> None:
    """Write one of the ranges of the rows of a part of the batch."""
    lanes, groups = min(a.width, THREADS), _at_once(a.width)  # threads of a row; rows at once
    group, lane = tirx.floordiv(thread, lanes), tirx.floormod(thread, lanes)
    step = T.Bind(tirx.ceildiv(a.height, ranges))
    first = T.Bind(tirx.min(number * step, a.height))
    behind = T.Bind(tirx.min(first + step, a.height))

    def write(row: Any, n: Any) -> None:
        mine = tirx.floormod(row - first, groups) == group
        with T.If(tirx.And(_within(row, first, behind), mine)), T.Then():
            _columns(a, b, row, lane, a.after(b, row, n))

    with T.serial(0, tirx.ceildiv(behind - first, groups)) as turn:
        row = T.Bind(first + turn * groups + group)
        with T.If(tirx.And(row < behind, group < groups)), T.Then():
            _columns(a, b, row, lane, a.before(b, row))
    _each_place(a, b, (first, behind), thread, write)


def _columns(a: PutRowsArguments, b: Any, row: Any, lane: Any, value: Element) -> None:
    """Write a thread's columns of a row."""
    with T.serial(0, (a.width + THREADS - 1) // THREADS) as turn:
        column = T.Bind(turn * THREADS + lane)
        with T.If(column < a.width), T.Then():
            T.buffer_store(a.out, value(column), [b, row, column])


def _within(row: Any, first: Any, behind: Any) -> Any:
    return tirx.And(row >= first, row < behind)


def _each_place(
    a: PutRowsArguments,
    b: Any,
    rows: tuple[Any, Any],
    thread: Any,
    write: Callable[[Any, Any], None],
) -> None:
    """Let every thread of a block have all places of its rows, in order; of others some."""
    chunk, found = shared(THREADS, "int64"), shared(1, "int64")
    with T.If(thread == 0), T.Then():
        T.buffer_store(found, tirx.const(0, "int64"), [0])
    barrier()
    with T.serial(0, tirx.ceildiv(a.count, THREADS)) as turn:
        begin = T.Bind(turn * THREADS)
        with T.If(begin + thread < a.count), T.Then():
            place = T.Bind(a.place(b, begin + thread))
            T.buffer_store(chunk, place, [thread])
            with T.If(_within(place, *rows)), T.Then():
                T.buffer_store(found, begin + 1, [0])  # whoever writes, writes the same
        barrier()
        size, none = tirx.min(a.count - begin, THREADS), tirx.const(0, "int64")
        some = T.Bind(tirx.Select(found[0] == begin + 1, size, none))
        with T.serial(0, some) as n:
            write(T.Bind(chunk[n]), begin + n)
        barrier()
