# SPDX-License-Identifier: Apache-2.0
"""Algebra of row-sparse tensors that does not depend on their numbers.

Every function takes and returns `RowSparse` whose leaves are Relax variables, and binds what it
computes in the current `BlockBuilder`. The same text serves a trace and, through `eager`, tensors
at run time. Nothing here coalesces: duplicates stay as they are. First come the operators over the
leaves that it is made of.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, TypeVar

from tvm import relax, te, tirx
from tvm.relax import op
from tvm.runtime import Tensor

from sparsetrain.errors import DataError
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


Rows = TypeVar("Rows", bound=Any)  # RowSparse, which is defined above this module


def dtype_of(leaf: Any) -> str:
    """Dtype of a leaf, traced or not."""
    return str(leaf.dtype if isinstance(leaf, Tensor) else leaf.ty.dtype)


def _emit(expr: relax.Expr) -> relax.Expr:
    """Bind an expression in the block being built, which also gives it its type."""
    return relax.BlockBuilder.current().emit(expr)


def scale(tensor: Rows, factor: Any) -> Rows:
    """Multiply by a scalar: a number or a Relax expression of shape ()."""
    if not isinstance(factor, relax.Expr):
        factor = relax.const(factor, dtype_of(tensor.values))
    return replace(tensor, values=_emit(op.multiply(tensor.values, factor)))


def divide(tensor: Rows, divisor: Any) -> Rows:
    """Divide by a scalar, as `scale` multiplies."""
    if not isinstance(divisor, relax.Expr):
        divisor = relax.const(divisor, dtype_of(tensor.values))
    return replace(tensor, values=_emit(op.divide(tensor.values, divisor)))


def clip(tensor: Rows, low: Any, high: Any) -> Rows:
    """Limit the values of a coalesced tensor; NaN stays NaN."""
    above = _emit(op.where(op.less(tensor.values, low), low, tensor.values))
    return replace(tensor, values=_emit(op.where(op.greater(above, high), high, above)))


def cast(tensor: Rows, dtype: str) -> Rows:
    """Convert the values."""
    return replace(tensor, values=_emit(op.astype(tensor.values, dtype)))


def reshape(tensor: Rows, shape: tuple[int, ...]) -> Rows:
    """Another split of the leading axes; the rows stay as they are."""
    return replace(tensor, shape=tuple(shape))


def slice_rows(tensor: Rows, start: int, shape: tuple[int, ...]) -> Rows:
    """Rows ``[start, start + shape[0])``: entries of other rows become padding.

    N stays as it is, so no shape depends on data.
    """
    rows = shape[0]
    shifted = _emit(op.subtract(tensor.indices, _like(start, tensor.indices)))
    inside = op.logical_and(
        op.greater_equal(shifted, _like(0, shifted)), op.less(shifted, _like(rows, shifted))
    )
    indices = _emit(op.where(inside, shifted, _like(rows, shifted)))
    return replace(tensor, indices=indices, num_rows=rows, shape=tuple(shape), coalesced=False)


def concat(left: Rows, right: Rows) -> Rows:
    """Add by putting entries side by side. Index dtypes widen to int64 if they differ."""
    kinds = [(tensor.shape, dtype_of(tensor.values)) for tensor in (left, right)]
    if kinds[0] != kinds[1]:
        raise DataError(f"RowSparse: {kinds[0]} and {kinds[1]} do not add")
    indices = [left.indices, right.indices]
    if dtype_of(indices[0]) != dtype_of(indices[1]):
        indices = [_emit(op.astype(index, "int64")) for index in indices]
    return replace(
        left,
        indices=_emit(op.concat(indices, axis=0)),
        values=_emit(op.concat([left.values, right.values], axis=0)),
        source=_concat_source(left, right),
        coalesced=False,
    )


def _concat_source(left: Rows, right: Rows) -> relax.Expr | None:
    if left.source is None and right.source is None:
        return None
    shifted = _emit(shift_sources(_source(right), left.values))
    return _emit(op.concat([_source(left), shifted], axis=0))


def _source(tensor: Rows) -> relax.Expr:
    return _emit(row_numbers(tensor.values)) if tensor.source is None else tensor.source


def _like(number: int, leaf: relax.Expr) -> relax.Expr:
    return relax.const(number, dtype_of(leaf))


def to_dense(tensor: Rows) -> relax.Expr:
    """The only place where a row-sparse tensor becomes dense.

    Zero-fills the result, then adds entry after entry: the order is that of the indices.
    """
    rows = _emit(
        scatter_add_rows(
            relax.ShapeExpr([tensor.num_rows, tensor.width]),
            tensor.indices,
            tensor.values,
            tensor.indices if tensor.source is None else tensor.source,
            pooled=int(tensor.source is not None),
        )
    )
    two_axes = tensor.shape == (tensor.num_rows, tensor.width)
    return rows if two_axes else _emit(op.reshape(rows, tensor.shape))
