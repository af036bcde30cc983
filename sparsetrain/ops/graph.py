# SPDX-License-Identifier: Apache-2.0
"""Operator that multiplies a sparse matrix of ones, such as a user-item graph, by dense rows.

The arguments hold the matrix in compressed rows, and its transpose too: the reverse pass is the
same kernel with the two swapped. Every result has one writer and sums run along a row, so the bits
do not depend on the number of threads. Cost: one row read for each element of the matrix.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from tvm import relax, tirx
from tvm.script.ir_builder import tirx as T
from tvm.tirx import PrimFunc, const

from sparsetrain.backend import current
from sparsetrain.errors import ConfigError
from sparsetrain.kernels.builder import buffer, extents, kernel
from sparsetrain.kernels.loops import HOST_LOOPS, Loops
from sparsetrain.kernels.relax_op import call_kernel, define_op
from sparsetrain.ops.ragged.row_kernels import first_of, put

_ARGUMENTS = ("dense", "columns", "ends", "transposed_columns", "transposed_ends")
_STRIDE = 64  # neighbouring rows go to different threads: the first rows are often the longest


@cache
def csr_product_kernel(
    width: int, dtype: str, id_dtype: str, loops: Loops = HOST_LOOPS
) -> PrimFunc:
    """Return the kernel ``out[b] = sum of dense[columns[n]]`` over the elements n of row b."""
    with kernel("csr_product") as built:
        inner, elements, rows, others = extents(4)
        dense = buffer("dense", (inner, width), dtype)
        columns, ends = buffer("columns", (elements,), id_dtype), buffer("ends", (rows,), "int64")
        buffer("transposed_columns", (others,), id_dtype)
        buffer("transposed_ends", (inner,), "int64")
        out = buffer("out", (rows, width), dtype)
        stride = const(_STRIDE, "int64")
        parts = tirx.floordiv(rows + stride - 1, stride)
        with loops.each_row(parts * stride, width) as (n, each):
            b = T.Bind(tirx.floormod(n, parts) * stride + tirx.floordiv(n, parts))
            with T.If(b < rows), T.Then():
                first = first_of(ends, b)
                each(lambda c: put(out, b, c, const(0, dtype)))
                with T.serial(0, ends[b] - first) as m:
                    row = T.Bind(tirx.Cast("int64", columns[first + m]))
                    each(lambda c: put(out, b, c, out[b, c] + dense[row, c]))
    return built.get()


def _infer(call: Any) -> relax.Type:
    dense, columns, ends, *_ = (argument.ty for argument in call.args)
    if len(dense.shape) != 2 or str(ends.dtype) != "int64" or len(columns.shape) != 1:
        raise ConfigError(
            f"csr_product takes dense (C, D), columns (E,) and ends (R,) int64, not {dense}, "
            f"{columns} and {ends}"
        )
    return relax.TensorType((ends.shape[0], dense.shape[1]), dense.dtype)


def _legalize(builder: relax.BlockBuilder, call: Any) -> relax.Expr:
    dense, columns = call.args[0].ty, call.args[1].ty
    made = current().kernel("csr_product", csr_product_kernel)(
        int(dense.shape[1]), str(dense.dtype), str(columns.dtype)
    )
    return call_kernel(builder, made, "csr_product", list(call.args), call.ty)


# Rows (C, D), columns (E,) and ends (R,) of a matrix (R, C), columns and ends of its transpose ->
# (R, D).
csr_product = define_op("csr_product", _ARGUMENTS, _infer, _legalize)
