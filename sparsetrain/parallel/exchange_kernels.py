# SPDX-License-Identifier: Apache-2.0
"""Kernels of the exchange: owner and local number of each row, and positions of looked-up rows.

Both run in parallel over their entries; each element is written by one thread.
"""

from __future__ import annotations

from typing import Any

from tvm import tirx
from tvm.script.ir_builder import tirx as T
from tvm.tirx import PrimFunc, const

from sparsetrain.kernels.builder import buffer, extents, kernel
from sparsetrain.runtime.compiling import host_kernel

STRIPS = 64


def keys_kernel(row_dtype: str, key_dtype: str, ranks: int, stride: int) -> PrimFunc:
    """Return a kernel that computes each row's key: ``owner * stride + row on the owner``.

    Its arguments: rows (N,); starts (T,) int64, the tables' first rows, ascending; owners (T,)
    int64, -1 for a table with rows on all ranks; first (T, ranks) int64, a table's first row on
    each rank; keys (N,).
    """
    with kernel() as built:
        count, tables = extents(2)
        rows = buffer("rows", (count,), row_dtype)
        starts, owners = (buffer(name, (tables,), "int64") for name in ("starts", "owners"))
        first = buffer("first", (tables, ranks), "int64")
        keys = buffer("keys", (count,), key_dtype)
        with T.parallel(0, STRIPS) as strip:
            begin = T.Bind(count * strip // STRIPS)
            with T.serial(0, T.Bind(count * (strip + 1) // STRIPS) - begin) as i:
                row = T.Bind(tirx.Cast("int64", rows[begin + i]))
                table = T.alloc_local((1,), "int64")
                T.buffer_store(table, const(-1, "int64"), [0])
                with T.serial(0, tables) as t:
                    T.buffer_store(table, table[0] + tirx.Cast("int64", starts[t] <= row), [0])
                of = T.Bind(table[0])
                place = T.Bind(row - starts[of])
                dealt = T.Bind(owners[of] < 0)
                owner = T.Bind(tirx.Select(dealt, place % ranks, owners[of]))
                own = tirx.Select(dealt, place // ranks, place)
                key = owner * stride + first[of, owner] + own
                T.buffer_store(keys, tirx.Cast(key_dtype, key), [begin + i])
    return built.get()


def places_kernel(dtype: str) -> PrimFunc:
    """Return a kernel that computes the number of the unique row of each plan entry.

    Its arguments: order (N,) and offsets (U + 1,) int32 of the plan; the result places (N,).
    """
    with kernel() as built:
        count, edges = extents(2)
        order, offsets = buffer("order", (count,), "int32"), buffer("offsets", (edges,), "int32")
        places = buffer("places", (count,), dtype)
        with T.parallel(0, edges - 1) as u, T.serial(0, offsets[u + 1] - offsets[u]) as k:
            entry: Any = order[offsets[u] + k]
            T.buffer_store(places, tirx.Cast(dtype, u), [entry])
    return built.get()


find_keys = host_kernel("keys of rows", keys_kernel)
find_places = host_kernel("places of entries", places_kernel)
