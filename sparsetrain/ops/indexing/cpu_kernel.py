# SPDX-License-Identifier: Apache-2.0
"""The CPU kernel of `put_rows`: each task owns a range of rows, and goes through all their places.

What is parallel: the batch; where it has fewer parts than there are threads, ranges of their rows.
Each row has one writer, which takes what is written to it in order, so results have the same
bits for every number of threads. The price: a place is read once for each range, so what lies in a
cache is one. Where there are several, a task first notes, without a branch, which places are its
own: at random places no processor foresees a branch.
What is vectorised: the columns of a row.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from tvm import DataType, tirx
from tvm.script.ir_builder import tirx as T
from tvm.tirx import PrimFunc

from sparsetrain.kernels.builder import counter, kernel, put
from sparsetrain.ops.indexing.put_rows_arguments import Element, PutRowsArguments
from sparsetrain.sparse_tensor.kernels import column_tiles

RANGE = 1 << 17  # bytes that are one range; ranges of more have at least half of them
NOTED = 256  # places at once


@cache
def put_rows_kernel(width: int, dtype: str, reduction: str, from_zero: bool = False) -> PrimFunc:
    """``out = data``, then ``out[b, places[b, n]]`` with ``updates[b, n]``, in the order of n."""
    with kernel("put_rows") as built:
        a = PutRowsArguments(width, dtype, reduction, from_zero)
        size = max(1, RANGE * 8 // (width * DataType(dtype).bits))
        threads = tirx.Cast("int64", tirx.call_packed("runtime.NumThreads"))
        idle = T.Bind(tirx.ceildiv(threads, tirx.max(a.batch, 1)))
        ranges = T.Bind(tirx.max(tirx.min(tirx.ceildiv(a.height, size), idle), 1))
        with T.parallel(0, a.batch * ranges) as task:
            b = T.Bind(tirx.floordiv(task, ranges))
            part = T.Bind(task - b * ranges)
            first = T.Bind(tirx.floordiv(a.height * part, ranges))
            rows = T.Bind(tirx.floordiv(a.height * (part + 1), ranges) - first)
            with T.serial(0, rows) as n:
                _row(a, b, first + n, a.before(b, first + n))
            with T.If(ranges == 1):
                with T.Then():
                    _all(a, b)
                with T.Else():
                    _own(a, b, first, rows)
    return built.get()


def _row(a: PutRowsArguments, b: Any, row: Any, value: Element) -> None:
    tiles, lanes = column_tiles(a.width)
    with T.serial(0, tiles) as t, T.vectorized(0, lanes) as d:
        T.buffer_store(a.out, value(t * lanes + d), [b, row, t * lanes + d])


def _all(a: PutRowsArguments, b: Any) -> None:
    """Write to every place."""
    with T.serial(0, a.count) as n:
        row = T.Bind(a.place(b, n))
        with T.If(row >= 0), T.Then():
            _row(a, b, row, a.after(b, row, n))


def _own(a: PutRowsArguments, b: Any, first: Any, rows: Any) -> None:
    """Write to those among `rows` rows from `first` on."""
    noted, own = T.alloc_local((NOTED,), "int32"), counter()
    with T.serial(0, tirx.ceildiv(a.count, NOTED)) as turn:
        begin = T.Bind(turn * NOTED)
        put(own, 0)
        with T.serial(0, tirx.min(a.count - begin, NOTED)) as n:
            is_own = _unsigned(a.place(b, begin + n) - first) < _unsigned(rows)
            T.buffer_store(noted, tirx.Cast("int32", n), [own[0]])
            put(own, own[0] + tirx.Cast("int32", is_own))
        with T.serial(0, own[0]) as k:
            n = T.Bind(begin + tirx.Cast("int64", noted[k]))
            row = T.Bind(a.place(b, n))
            _row(a, b, row, a.after(b, row, n))


def _unsigned(number: Any) -> Any:
    """What is below 0 is more than any other."""
    return tirx.Cast("uint64", number)
