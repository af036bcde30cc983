# SPDX-License-Identifier: Apache-2.0
"""The sum of a matrix that was computed in pieces, first to last."""

from __future__ import annotations

from tvm import tirx
from tvm.script import tirx as T


def sum_kernel(rows: int, columns: int, dtype: str) -> tirx.PrimFunc:
    """Add the pieces (P, rows, columns) of each element in order; a thread for each element."""

    @T.prim_func(s_tir=True, private=True)
    def sum_of_pieces(parts: T.handle, out: T.handle):
        T.func_attr({"tirx.noalias": True, "tirx.is_scheduled": True, "op_pattern": 8})
        P = T.int64()
        Parts = T.match_buffer(parts, (P, rows, columns), dtype)
        Out = T.match_buffer(out, (rows, columns), dtype)
        for block in T.thread_binding(-(-rows * columns // 256), thread="blockIdx.x"):
            for thread in T.thread_binding(256, thread="threadIdx.x"):
                e: T.let = block * 256 + thread
                if e < rows * columns:
                    total = T.alloc_buffer((1,), dtype, scope="local")
                    total[0] = T.cast(0, dtype)
                    for piece in T.serial(P):
                        total[0] = total[0] + Parts[piece, e // columns, e % columns]
                    Out[e // columns, e % columns] = total[0]

    return sum_of_pieces
