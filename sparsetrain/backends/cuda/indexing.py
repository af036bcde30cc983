# SPDX-License-Identifier: Apache-2.0
"""The CUDA kernel that writes rows selected by ids, with one writer per row and no atomics."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tvm import tirx
from tvm.script.ir_builder import tirx as T
from tvm.tirx import PrimFunc

from sparsetrain.backends.cuda.sparse.parts import THREADS, each_of
from sparsetrain.backends.cuda.sparse.row_kernels import entries_by_owner
from sparsetrain.kernels.builder import buffer, extents, kernel


def write_kernel(width: int, dtype: str, combine: Callable[[Any, Any], Any]) -> PrimFunc:
    """Return ``write(x, ids, new, out)``, which copies x and combines `new` into its rows `ids`."""
    with kernel("write") as built:
        height, count = extents(2)
        x, ids = buffer("x", (height, width), dtype), buffer("ids", (count,), "int64")
        new, out = buffer("new", (count, width), dtype), buffer("out", (height, width), dtype)
        with each_of(height * width) as number:
            place = [tirx.floordiv(number, width), tirx.floormod(number, width)]
            T.buffer_store(out, x[place[0], place[1]], place)
        owned = entries_by_owner(ids, height)
        with owned as (thread, entry, row), T.serial(0, -(-width // THREADS)) as turn:
            column = T.Bind(turn * THREADS + thread)
            with T.If(column < width), T.Then():
                value = combine(out[row, column], new[entry, column])
                T.buffer_store(out, value, [row, column])
    return built.get()
