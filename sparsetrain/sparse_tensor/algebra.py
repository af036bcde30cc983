# SPDX-License-Identifier: Apache-2.0
"""Operators on row-sparse tensors with result shapes that do not depend on data.

Every function takes and returns a `RowSparse` of Relax variables, and binds its results in the
current `BlockBuilder`. Nothing here coalesces, so duplicates remain. The operators on single leaves
come first.

`eager` runs the same code on tensors: it traces a function over variables with the tensors' dtypes
and widths and with symbolic lengths, then compiles and caches it. A later call takes a few
microseconds. Numbers become scalar inputs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, TypeVar

import numpy as np
import tvm
from tvm import relax, te, tirx
from tvm.relax import op
from tvm.runtime import Tensor

from sparsetrain import runtime
from sparsetrain.backend import current
from sparsetrain.errors import DataError
from sparsetrain.kernels.relax_op import call_kernel, define_op
from sparsetrain.runtime.compiling import build_relax
from sparsetrain.runtime.pool import limit_pool
from sparsetrain.runtime.tensors import target_of, to_device
from sparsetrain.sparse_tensor import segment_kernels
from sparsetrain.system.locks import new_lock, with_builder_lock


def _scatter_type(call: Any) -> relax.Type:
    return relax.TensorType(call.args[0], call.args[2].ty.dtype)


def _scatter_kernel(builder: relax.BlockBuilder, call: Any) -> relax.Expr:
    _, ids, values, source = call.args
    kernel = current().kernel("scatter_add_rows", segment_kernels.scatter_add_kernel)(
        int(values.ty.shape[1]),
        str(values.ty.dtype),
        str(ids.ty.dtype),
        bool(call.attrs["pooled"]),
    )
    return call_kernel(builder, kernel, "scatter_add_rows", [ids, values, source], call.ty)


# Shape (V, D), (N,) ids in [0, V], (M, D) values, (N,) sources -> zeros, with the values added row
# by row in order; ids equal to V are skipped.
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


Rows = TypeVar("Rows", bound=Any)  # RowSparse, which this module must not import


def dtype_of(leaf: Any) -> str:
    """Return the dtype of a leaf, traced or not."""
    return str(leaf.dtype if isinstance(leaf, Tensor) else leaf.ty.dtype)


def _emit(expr: relax.Expr) -> relax.Expr:
    """Bind an expression in the current block, which also infers its type."""
    return relax.BlockBuilder.current().emit(expr)


def scale(tensor: Rows, factor: Any) -> Rows:
    """Multiply by a scalar: a number, or a Relax expression of shape ()."""
    if not isinstance(factor, relax.Expr):
        factor = relax.const(factor, dtype_of(tensor.values))
    return replace(tensor, values=_emit(op.multiply(tensor.values, factor)))


def divide(tensor: Rows, divisor: Any) -> Rows:
    """Divide by a scalar; see `scale`."""
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
    """Split the leading axes in a new way; the rows do not change."""
    return replace(tensor, shape=tuple(shape))


def slice_rows(tensor: Rows, start: int, shape: tuple[int, ...]) -> Rows:
    """Return rows ``[start, start + shape[0])``; entries outside become padding.

    The number of entries N does not change, so no shape depends on data.
    """
    rows = shape[0]
    shifted = _emit(op.subtract(tensor.indices, _like(start, tensor.indices)))
    inside = op.logical_and(
        op.greater_equal(shifted, _like(0, shifted)), op.less(shifted, _like(rows, shifted))
    )
    indices = _emit(op.where(inside, shifted, _like(rows, shifted)))
    return replace(tensor, indices=indices, num_rows=rows, shape=tuple(shape), coalesced=False)


def concat(left: Rows, right: Rows) -> Rows:
    """Add by concatenating entries. Index dtypes widen to int64 if they differ."""
    kinds = [(tensor.shape, dtype_of(tensor.values)) for tensor in (left, right)]
    if kinds[0] != kinds[1]:
        raise DataError(
            f"RowSparse: cannot add {kinds[0]} and {kinds[1]}: shapes and dtypes must be equal"
        )
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
    """Return the dense tensor; no other function makes a row-sparse tensor dense.

    It fills the result with zeros, then adds the entries in order.
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


# Rule and signature -> compiled rule, and the structure of a row-sparse result.
_compiled: dict[Any, tuple[Any, Any]] = {}
_lock = new_lock()


def eager(rule: Callable[..., Any], *arguments: Any) -> Any:
    """Apply `rule` at once if the leaves of `arguments` are tensors, else add it to the trace."""
    if any(getattr(a, "is_traced", False) for a in arguments):
        return rule(*arguments)
    first = arguments[0]
    place = first.values
    arguments = tuple(_scalar(a, first.dtype, place) if _is_number(a) else a for a in arguments)
    target = target_of(place)
    key = (rule.__name__, target.kind.name, *map(_signature, arguments))
    leaves = [leaf for a in arguments for leaf in _leaves(a)]
    with _lock:  # threads share one virtual machine
        if key not in _compiled:
            _compiled[key] = _compile(rule, arguments, target)
        function, structure = _compiled[key]
        limit_pool(leaves)
        result = function(*leaves)
    return result if structure is None else structure.with_leaves(tuple(result))


@with_builder_lock
def _compile(
    rule: Callable[..., Any], arguments: tuple[Any, ...], target: tvm.target.Target
) -> tuple[Any, Any]:
    """Trace `rule` over variables like `arguments`; return it with its result's structure."""
    traced = tuple(_variables(a, f"arg{i}") for i, a in enumerate(arguments))
    builder = relax.BlockBuilder()
    with builder.function("rule", [leaf for a in traced for leaf in _leaves(a)]):
        with builder.dataflow():
            result = rule(*traced)
            sparse = hasattr(result, "leaves")
            leaves = [builder.emit(leaf) for leaf in (result.leaves if sparse else [result])]
            output = builder.emit_output(relax.Tuple(leaves) if sparse else leaves[0])
        builder.emit_func_output(output)
    machine = build_relax(builder.get(), target)
    return machine["rule"], result if sparse else None  # `result` holds no data


def _variables(argument: Any, name: str) -> Any:
    if hasattr(argument, "leaves"):
        rows = {leaf: f"{name}_{leaf}" for leaf in ("N", "M")}
        count = tvm.tirx.Var(rows["N"], "int64")
        stored = count if argument.source is None else tvm.tirx.Var(rows["M"], "int64")
        shapes = [(count,), (stored, argument.width), (count,)]
        return argument.with_leaves(
            tuple(
                relax.Var(f"{name}_{i}", relax.TensorType(shape, str(leaf.dtype)))
                for i, (leaf, shape) in enumerate(zip(argument.leaves, shapes, strict=False))
            )
        )
    if isinstance(argument, runtime.NDArray):
        return relax.Var(name, relax.TensorType((), str(argument.dtype)))
    return argument


def _leaves(argument: Any) -> tuple[Any, ...]:
    if hasattr(argument, "leaves"):
        return tuple(argument.leaves)
    return (argument,) if isinstance(argument, (runtime.NDArray, relax.Expr)) else ()


def _signature(argument: Any) -> Any:
    if hasattr(argument, "leaves"):
        dtypes = tuple(str(leaf.dtype) for leaf in argument.leaves)
        return (*dtypes, argument.num_rows, argument.shape, argument.coalesced)
    return str(argument.dtype) if isinstance(argument, runtime.NDArray) else argument


def _is_number(argument: Any) -> bool:
    if isinstance(argument, np.ndarray):
        return argument.ndim == 0
    return isinstance(argument, (int, float, np.number)) and not isinstance(argument, bool)


def _scalar(number: Any, dtype: str, place: runtime.NDArray) -> Any:
    return to_device(runtime.as_tensor(np.asarray(number, dtype)), place.device)
