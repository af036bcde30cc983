# SPDX-License-Identifier: Apache-2.0
"""Relax operators over the leaves of a row-sparse tensor, so that its algebra can be traced."""

from __future__ import annotations

from typing import Any

from tvm import relax, te, tirx

from sparsetrain.kernels.relax_op import call_kernel, define_op, for_target
from sparsetrain.sparse_tensor import kernels
from sparsetrain.sparse_tensor.cuda import kernels as cuda_kernels


def _scatter_type(call: Any) -> relax.Type:
    return relax.TensorType(call.args[0], call.args[2].ty.dtype)


def _scatter_kernel(builder: relax.BlockBuilder, call: Any) -> relax.Expr:
    _, ids, values, source = call.args
    kernel = for_target(llvm=kernels, cuda=cuda_kernels).scatter_add_kernel(
        int(values.ty.shape[1]),
        str(values.ty.dtype),
        str(ids.ty.dtype),
        bool(call.attrs["pooled"]),
    )
    return call_kernel(builder, kernel, "scatter_add_rows", [ids, values, source], call.ty)


# The shape (V, D), (N,) ids in [0, V], (M, D) values, (N,) sources -> zeros, plus the values row by
# row, in order; an id of V is left out.
scatter_add_rows = define_op(
    "scatter_add_rows", ("shape", "ids", "values", "source"), _scatter_type, _scatter_kernel
)


def _row_numbers(values: te.Tensor) -> te.Tensor:
    return te.compute((values.shape[0],), lambda n: n.astype("int32"), "row_numbers")


# (M, D) values -> (M,) int32: 0, 1, ..., M - 1.
row_numbers = define_op(
    "row_numbers",
    ("values",),
    lambda call: relax.TensorType((call.args[0].ty.shape[0],), "int32"),
    lambda builder, call: builder.call_te(_row_numbers, call.args[0]),
)


def _shift_sources(source: te.Tensor, values: te.Tensor) -> te.Tensor:
    rows = tirx.Cast("int32", values.shape[0])
    return te.compute(source.shape, lambda n: source[n] + rows, "shift_sources")


# (N,) int32 sources, (M, D) values -> (N,) int32: each source plus M.
shift_sources = define_op(
    "shift_sources",
    ("source", "values"),
    lambda call: call.args[0].ty,
    lambda builder, call: builder.call_te(_shift_sources, call.args[0], call.args[1]),
)
