# SPDX-License-Identifier: Apache-2.0
"""The CPU kernel of `put_rows`: each task owns a range of rows, and goes through all places.

What is parallel: ranges of rows. Each row has one writer, which takes what is written to it in
order, so results have the same bits for every number of threads. The price: a place is read
once for each range. What lies in a cache is one range; more is a few, which then do.
What is vectorised: the columns of a row.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from tvm import DataType, tirx
from tvm.script.ir_builder import tirx as T
from tvm.tirx import PrimFunc

from sparsetrain.indexing.combine import COMBINE
from sparsetrain.kernel_builder import buffer, extents, kernel
from sparsetrain.sparse_tensor.kernels import column_tiles

RANGES = 8  # at most
RANGE = 1 << 17  # bytes of a range, at least


@cache
def put_rows_kernel(width: int, dtype: str, reduction: str) -> PrimFunc:
    """``out = data``, then ``out[places[n]]`` with ``updates[n]``, in the order of n."""
    combine = COMBINE[reduction]
    with kernel("put_rows") as built:
        height, count = extents(2)
        data = buffer("data", (height, width), dtype)
        places = buffer("places", (count,), "int64")
        updates = buffer("updates", (count, width), dtype)
        out = buffer("out", (height, width), dtype)
        size = max(1, RANGE * 8 // (width * DataType(dtype).bits))
        ranges = T.Bind(tirx.min(tirx.ceildiv(height, size), tirx.const(RANGES, "int64")))
        with T.parallel(0, ranges) as task:
            step = T.Bind(tirx.ceildiv(height, ranges))
            first = T.Bind(tirx.min(task * step, height))
            behind = T.Bind(tirx.min(first + step, height))
            with T.serial(0, behind - first) as n:
                _row(out, first + n, lambda d: data[first + n, d])
            with T.serial(0, count) as n:
                row = T.Bind(places[n])
                with T.If(tirx.And(row >= first, row < behind)), T.Then():
                    _row(out, row, lambda d: combine(out[row, d], updates[n, d]))
    return built.get()


def _row(out: Any, row: Any, value: Any) -> None:
    tiles, lanes = column_tiles(int(out.shape[1]))
    with T.serial(0, tiles) as t, T.vectorized(0, lanes) as d:
        T.buffer_store(out, value(t * lanes + d), [row, t * lanes + d])
