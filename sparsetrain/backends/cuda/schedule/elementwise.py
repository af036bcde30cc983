# SPDX-License-Identifier: Apache-2.0
"""Kernels of elementwise functions on matrices, such as masks and casts outside of products.

A thread computes four adjacent elements. With TVM's rule it would compute one, and so read and
write only two or four bytes at a time.

Cost: one read and one write, 16 bytes at a time in float32.
"""

from __future__ import annotations

from tvm import s_tir, tirx
from tvm.s_tir.dlight.analysis import normalize_prim_func
from tvm.script.ir_builder import tirx as T

from sparsetrain.backends.cuda.schedule.epilogue import moved
from sparsetrain.compiler.schedule.operands import inline_all_but_last
from sparsetrain.kernels.builder import kernel

_THREADS = 256
_LANES = 4
_DTYPES = ("float32", "bfloat16", "float16")  # four elements are one memory access


def elementwise(function: tirx.PrimFunc) -> tirx.PrimFunc | None:
    """Return the scheduled function if it computes a matrix elementwise, else None."""
    sch = s_tir.Schedule(function)
    blocks = normalize_prim_func(sch) or []
    if not blocks or not all(info.is_injective() for info in blocks):
        return None
    block, extents = sch.get(inline_all_but_last(sch, blocks)), blocks[-1].dom()
    store, axes = block.body, [axis.var for axis in block.iter_vars]
    if len(axes) != 2 or not isinstance(extents[1], int) or extents[1] % _LANES:
        return None
    if not isinstance(store, tirx.BufferStore) or len(store.indices) != 2:
        return None
    if not all(i.same_as(axis) for i, axis in zip(store.indices, axes, strict=True)):
        return None
    matrices = [store.buffer, *(region.source for region in block.reads)]
    if not all(str(matrix.dtype) in _DTYPES for matrix in matrices):
        return None
    return function.with_body(_body(store, axes, extents))


def _body(store: tirx.BufferStore, axes: list[tirx.Var], extents: list) -> tirx.Stmt:
    with kernel("elementwise") as built:
        in_row = extents[1] // _LANES
        zero, threads = tirx.const(0, "int64"), tirx.const(_THREADS, "int64")
        parts = extents[0] * tirx.const(in_row, "int64")
        with (
            T.thread_binding(zero, tirx.ceildiv(parts, threads), thread="blockIdx.x") as block,
            T.thread_binding(zero, threads, thread="threadIdx.x") as thread,
        ):
            number = T.Bind(block * _THREADS + thread)
            with T.If(number < parts), T.Then():
                row = T.Bind(tirx.floordiv(number, in_row))
                column = T.Bind(tirx.floormod(number, in_row) * _LANES)
                with T.vectorized(0, _LANES) as lane:
                    place = [row, column + tirx.Cast("int64", lane)]
                    T.buffer_store(store.buffer, moved(store.value, axes, place), place)
    return built.get().body
