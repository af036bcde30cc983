# SPDX-License-Identifier: Apache-2.0
"""Operators that write by ids; TVM's kernels write out of bounds if an id is out of range.

Each operator writes to the places that an operator of `reads` with the same ids would read. The
kernel gets x as rows, and the row number of each id. It copies x, then writes in the order of the
ids, so the last of equal ids wins. A negative id counts from the end; an id that is still out of
range is skipped.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tvm import relax, te, tirx
from tvm.script.ir_builder import tirx as T
from tvm.tirx import PrimFunc

from sparsetrain.backend import current
from sparsetrain.kernels.builder import buffer, extents, kernel
from sparsetrain.kernels.relax_op import call_kernel
from sparsetrain.ops.indexing import reads
from sparsetrain.ops.operand_shapes import is_one

Combine = Callable[[Any, Any], Any]  # (old value, written value) -> new value

REDUCTIONS: dict[str, Combine] = {
    "update": lambda old, new: new,
    "add": lambda old, new: old + new,
    "mul": lambda old, new: old * new,
    "min": tirx.min,
    "max": tirx.max,
    "mean": lambda old, new: (old + new) / 2,
}


def write_kernel(width: int, dtype: str, combine: Combine) -> PrimFunc:
    """Copy ``out = x``, then set ``out[ids[n]] = combine(out[ids[n]], new[n])`` in order."""
    with kernel("write") as built:
        height, count = extents(2)
        x, ids = buffer("x", (height, width), dtype), buffer("ids", (count,), "int64")
        new, out = buffer("new", (count, width), dtype), buffer("out", (height, width), dtype)
        with T.parallel(0, height) as row, T.serial(0, width) as d:
            T.buffer_store(out, x[row, d], [row, d])
        with T.serial(0, count) as n:
            row = T.Bind(ids[n])
            with T.If(tirx.And(row >= 0, row < height)), T.Then(), T.serial(0, width) as d:
                T.buffer_store(out, combine(out[row, d], new[n, d]), [row, d])
    return built.get()


def _legalized(builder: relax.BlockBuilder, call: Any) -> relax.Expr:
    x, _, new = call.args
    read = reads.read_of(builder, call)
    rows = reads.rows_read(builder, x, read)
    if rows.width == 0:
        return x
    make = current().kernel("write", write_kernel)
    written = make(rows.width, str(x.ty.dtype), REDUCTIONS[_reduction(call)])
    each = [*reads.extents_of(x, read), *[*x.ty.shape][read.axes :]]
    flat = [
        _reshaped(builder, x, [rows.height, rows.width]),
        rows.places,
        _reshaped(builder, _repeated(builder, new, each), [rows.count, rows.width]),
    ]
    out = builder.emit(call_kernel(builder, written, "write", flat, flat[0].ty))
    return _reshaped(builder, out, x.ty.shape)


def _reduction(call: Any) -> str:
    if call.op.name == "relax.index_put":
        return "add" if call.attrs["accumulate"] else "update"
    return str(call.attrs["reduction"])


def _reshaped(builder: relax.BlockBuilder, x: relax.Expr, shape: Any) -> relax.Expr:
    return builder.emit(relax.op.reshape(x, relax.ShapeExpr([*shape])))


def _repeated(builder: relax.BlockBuilder, new: relax.Expr, shape: list[Any]) -> relax.Expr:
    """Return the new values, broadcast to the shape of the values that they replace."""
    if len(new.ty.shape) == len(shape) and not any(map(is_one, new.ty.shape)):
        return new

    def repeated(new: te.Tensor) -> te.Tensor:
        return te.compute(shape, lambda *at: new(*reads.broadcast_index(at, new.shape)), "repeated")

    return builder.emit_te(repeated, new)


# Operator -> lowering that replaces TVM's.
LEGALIZE = dict.fromkeys(
    ("relax.scatter_nd", "relax.scatter_elements", "relax.index_put"), _legalized
)
