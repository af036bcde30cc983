# SPDX-License-Identifier: Apache-2.0
"""Running sums (`cumsum`) along an axis, in a fixed order.

In TVM's CUDA kernel, threads read the sums of adjacent threads in shared memory while these are
written, so its result depends on timing. Here a thread block computes a series, a line of elements
along the axis. Each thread sums a part of it, and then computes the part's running sums, starting
from the sum of all earlier parts.

Cost: a series is read twice and written once. Short series leave most of a block's threads idle.
"""

from __future__ import annotations

from math import prod
from typing import Any

from tvm import relax, tirx
from tvm.script.ir_builder import tirx as T

from sparsetrain.kernels.builder import buffer, extents, kernel
from sparsetrain.kernels.rewrite import Rewriter, function_pass, is_call

_THREADS = 128


@function_pass
class TakeRunningSums(Rewriter):
    """Replace `cumsum` by a hand-written kernel; run before `DispatchSortScan`."""

    def visit_call_(self, call: relax.Call) -> relax.Expr:
        """Reshape the argument of `cumsum` to three axes, and sum along the middle axis."""
        call = super().visit_call_(call)
        if not is_call(call, "relax.cumsum") or call.args[0].ty.shape is None:
            return call
        (source,), shape = call.args, call.args[0].ty.shape
        axis = call.attrs["axis"]
        series = _series(list(shape), None if axis is None else int(axis))
        dtypes = str(source.ty.dtype), str(call.ty.dtype)
        running_sum = running_sum_kernel(*dtypes, bool(call.attrs["exclusive"]))
        sums = relax.call_tir(
            self.builder_.add_func(running_sum, "running_sum"),
            [self.builder_.emit(relax.op.reshape(source, series))],
            relax.TensorType(series, dtypes[1]),
        )
        return relax.op.reshape(self.builder_.emit(sums), call.ty.shape)


def _series(shape: list[Any], axis: int | None) -> list[Any]:
    """Return (outer, length, inner): the extents before, along and after the axis."""
    one = tirx.const(1, "int64")
    if axis is None:
        return [one, prod(shape, start=one), one]
    axis %= len(shape)
    return [prod(shape[:axis], start=one), shape[axis], prod(shape[axis + 1 :], start=one)]


def running_sum_kernel(dtype: str, out_dtype: str, exclusive: bool) -> tirx.PrimFunc:
    """Return the kernel ``out[:, i] = sum(a[:, : i + 1])`` for arrays (outer, length, inner).

    With `exclusive`, sum ``a[:, :i]``.
    """
    with kernel("running_sum") as built:
        outer, length, inner = extents(3)
        a = buffer("a", (outer, length, inner), dtype)
        out = buffer("out", (outer, length, inner), out_dtype)
        zero = tirx.const(0, "int64")
        with (
            T.thread_binding(zero, outer * inner, thread="blockIdx.x") as series,
            T.thread_binding(0, _THREADS, thread="threadIdx.x") as thread,
        ):
            row, column = T.Bind(tirx.floordiv(series, inner)), T.Bind(tirx.floormod(series, inner))
            part = T.Bind(tirx.ceildiv(length, tirx.const(_THREADS, "int64")))
            begin = T.Bind(tirx.min(tirx.Cast("int64", thread) * part, length))
            count = T.Bind(tirx.min(begin + part, length) - begin)
            parts = T.alloc_buffer((_THREADS,), out_dtype, scope="shared")
            total = T.alloc_local((1,), out_dtype)

            def add(term: Any) -> None:
                T.buffer_store(total, total[0] + term, [0])

            T.buffer_store(total, tirx.const(0, out_dtype), [0])
            with T.serial(0, count) as i:
                add(tirx.Cast(out_dtype, a[row, begin + i, column]))
            T.buffer_store(parts, total[0], [thread])
            T.evaluate(tirx.call_intrin("int32", "tirx.tvm_storage_sync", "shared"))
            T.buffer_store(total, tirx.const(0, out_dtype), [0])
            with T.serial(0, thread) as earlier:
                add(parts[earlier])
            with T.serial(0, count) as i:
                if exclusive:
                    T.buffer_store(out, total[0], [row, begin + i, column])
                add(tirx.Cast(out_dtype, a[row, begin + i, column]))
                if not exclusive:
                    T.buffer_store(out, total[0], [row, begin + i, column])
    return built.get()
