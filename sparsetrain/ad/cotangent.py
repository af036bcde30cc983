# SPDX-License-Identifier: Apache-2.0
"""Cotangents, the values of the reverse pass: their sum and the one conversion to dense.

A cotangent is a Relax variable (dense), a `RowSparse` of variables, or a tuple of cotangents with
None for fields without one so far. `join` is the only function that adds two; `make_dense` is the
only one that converts a row-sparse cotangent to dense, and it runs only if the caller allows it.
"""

from __future__ import annotations

from typing import Any, TypeAlias

from tvm import relax

from sparsetrain.errors import ConfigError
from sparsetrain.ops.operand_shapes import simplified
from sparsetrain.sparse_tensor import RowSparse, algebra

Cotangent: TypeAlias = "relax.Expr | RowSparse | tuple[Any, ...]"


def join(left: Cotangent | None, right: Cotangent | None, where: str, dense: bool) -> Cotangent:
    """Add two cotangents of one variable.

    Parameters
    ----------
    left, right : Cotangent or None
        None means that no cotangent has arrived.
    where : str
        The parameter's name, for the error message.
    dense : bool
        Whether the caller allows a dense gradient of that parameter.

    Raises
    ------
    ConfigError
        If one is dense and the other row-sparse, and `dense` is False.
    """
    if left is None or right is None:
        return left if right is None else right
    if isinstance(left, tuple) and isinstance(right, tuple):
        return tuple(join(a, b, where, dense) for a, b in zip(left, right, strict=True))
    if isinstance(left, RowSparse) and isinstance(right, RowSparse):
        return algebra.concat(left, right)
    if isinstance(left, RowSparse) or isinstance(right, RowSparse):
        if not dense:
            raise ConfigError(
                f"parameter {where!r} receives a row-sparse and a dense cotangent (a tied "
                f"embedding): pass densify=[{where!r}] to accept a dense gradient of the whole "
                "table, or use two parameters"
            )
        left, right = make_dense(left), make_dense(right)
    return emit(relax.op.add(left, right))


def make_dense(cotangent: Cotangent) -> Cotangent:
    """Convert a cotangent to dense, as long as the table; so only callers may request this."""
    if isinstance(cotangent, tuple):
        return tuple(make_dense(part) for part in cotangent)
    return algebra.to_dense(cotangent) if isinstance(cotangent, RowSparse) else cotangent


def is_row_sparse(cotangent: Cotangent | None) -> bool:
    """Whether a cotangent is row-sparse, or a tuple with a row-sparse field."""
    if isinstance(cotangent, tuple):
        return any(is_row_sparse(part) for part in cotangent)
    return isinstance(cotangent, RowSparse)


def emit(expr: relax.Expr) -> relax.Expr:
    """Bind an expression in the current block, with simplified extents in its type."""
    return expr if isinstance(expr, relax.Var) else bind(relax.BlockBuilder.current(), expr)


def bind(builder: relax.BlockBuilder, expr: relax.Expr, name: str = "lv") -> relax.Var:
    """Bind an expression to a variable of its type, with extents in TVM's simplest form.

    Otherwise a Relax type may have the extent ``1 + K`` and a kernel's buffer ``K + 1``, and
    `FuseTIR` treats these as two different extents.
    """
    expr = builder.normalize(expr)
    simple = simplified(expr.ty)
    if simple is expr.ty:
        return builder.emit(expr, name)
    var = relax.DataflowVar(builder.get_unique_name(name), simple)
    builder.emit_normalized(relax.VarBinding(var, expr))
    return var


def materialize(cotangent: Cotangent | None, ty: relax.Type) -> relax.Expr:
    """Return one Relax expression of type `ty`; missing fields of tuples become zeros."""
    if cotangent is None and isinstance(ty, relax.TensorType):
        return emit(relax.op.zeros(ty.shape, str(ty.dtype)))
    if isinstance(ty, relax.TupleType):
        fields: Any = cotangent or (None,) * len(ty.fields)
        return emit(
            relax.Tuple([materialize(c, t) for c, t in zip(fields, ty.fields, strict=True)])
        )
    return cotangent
