# SPDX-License-Identifier: Apache-2.0
"""The rule table: which operators create a row-sparse cotangent and which pass one on.

A rule maps the cotangent of a call's result to cotangents of its arguments::

    rule(output, call, cotangent, builder) -> [cotangent or None, one per argument]

`output` is the variable bound to the call. None means that an argument cannot have a cotangent
(ids, a shape); it is an error if that argument depends on a wanted parameter.

A dense cotangent goes to the rule registered with `defvjp(name, rule)`, else to TVM's own rule (the
operator attribute ``FPrimalGradient``). A row-sparse one goes to the rule registered with
``row_sparse=True``; there is no fallback, so nothing becomes dense unnoticed. This module has the
rules by which TVM's operators create or pass on a row-sparse cotangent.
`embedding.lookup_operators` has the rules of lookups, `dense_rules` the dense ones; each has a case
in ``tests/ad/cases.py``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import tvm
from tvm import relax
from tvm.relax import op

from sparsetrain.ad.activation_rows import added_where_read, places_read
from sparsetrain.ad.copied_rows import are_rows, copied_parameter, row_sparse_copies
from sparsetrain.ad.cotangent import Cotangent, emit, is_row_sparse
from sparsetrain.ad.differentiable import extents_of
from sparsetrain.errors import ConfigError, SparsetrainError, first_line
from sparsetrain.ops.indexing.reads import along_axis, rows_read
from sparsetrain.sparse_tensor import RowSparse, algebra

# (output, call, cotangent, builder) -> one cotangent or None per argument
VJPRule = Callable[[relax.Var, Any, Any, relax.BlockBuilder], Sequence[Any]]

DENSE: dict[str, VJPRule] = {}
ROW_SPARSE: dict[str, VJPRule] = {}


def defvjp(name: str, rule: VJPRule, *, row_sparse: bool = False) -> None:
    """Register the reverse rule of a Relax operator.

    Parameters
    ----------
    name : str
        Full name, as in ``"relax.take"``.
    rule : callable
        ``rule(output, call, cotangent, builder)``, as this module's docstring explains. The walker
        binds the returned expressions and drops them for arguments without a gradient.
    row_sparse : bool
        Whether the rule takes a `RowSparse` cotangent instead of a dense one.

    Raises
    ------
    ConfigError
        If there is no such operator.

    Examples
    --------
    Rounding with the derivative of the identity::

        from tvm.relax import op

        def straight_through(output, call, cotangent, builder):
            return [cotangent]                          # one part for each argument

        st.ad.defvjp("relax.round", straight_through)

    Rules read ``call.args`` and ``call.attrs``, and return expressions of `tvm.relax.op`, such as
    ``[op.multiply(op.cos(call.args[0]), cotangent)]``. Verify them with `check_grads`.
    """
    try:
        tvm.ir.Op.get(name)
    except Exception:  # TVM raises several types
        raise ConfigError(
            f"defvjp: there is no operator {name!r}; names are like 'relax.take'"
        ) from None
    (ROW_SPARSE if row_sparse else DENSE)[name] = rule


def find_rule(call: Any, cotangent: Cotangent | None) -> VJPRule | None:
    """Return the rule for this operator and this kind of cotangent, or None."""
    if not isinstance(call.op, tvm.ir.Op):
        return None
    if is_row_sparse(cotangent):
        return ROW_SPARSE.get(call.op.name)
    return DENSE.get(call.op.name) or call.op.get_attr("FPrimalGradient")


def apply_rule(rule: VJPRule, output: relax.Var, call: Any, cotangent: Any) -> Sequence[Any]:
    """Apply a rule.

    Raises
    ------
    ConfigError
        If the rule does not support the call. TVM's rules, and operators that a rule builds, raise
        errors of any type, which this one replaces.
    """
    try:
        return rule(output, call, cotangent, relax.BlockBuilder.current())
    except SparsetrainError:
        raise
    except Exception as error:
        name = call.op.name
        raise ConfigError(
            f"the derivative of {name!r} does not take this call ({first_line(error)}): register "
            f"a rule for it with ad.defvjp({name!r}, rule)"
        ) from error


# --- Rules that create a row-sparse cotangent -----------------------------------------------------


def row_sparse_cotangent(table: relax.Expr, ids: relax.Expr, cotangent: relax.Expr) -> RowSparse:
    """Return a table's cotangent after a read of rows `ids`, given the `cotangent` of that read.

    Forward Form
        ``y[i, ...] = table[ids[i], ...]``, ids of any rank
    Backward
        ``RowSparse(indices=ids flattened, values=cotangent as one row per id)``
    """
    shape = extents_of(table) or []
    indices = emit(op.reshape(ids, [-1])) if len(ids.ty.shape) != 1 else ids
    values = cotangent
    if len(shape) != 2 or len(ids.ty.shape) != 1:
        values = emit(op.reshape(cotangent, [-1, prod(shape[1:])]))
    return RowSparse(indices, values, shape[0], shape=tuple(shape))


def _axis(axis: Any, tensor: relax.Expr) -> int:
    """Return a call's axis as a non-negative number; by default the first."""
    return int(axis or 0) % len(tensor.ty.shape)


def _take(output: relax.Var, call: Any, cotangent: relax.Expr, builder: Any) -> list:
    """Return a row-sparse cotangent for rows of a table (axis 0, a static number of rows).

    Any other `take` from an activation has a dense cotangent. From a parameter it is an error,
    because the cotangent would be as long as the parameter. From a copy of a parameter it is also
    an error, unless it reads whole rows.
    """
    table, ids = call.args
    axis = _axis(call.attrs["axis"], table)
    extents = table.ty.shape
    by_rows = axis == 0 and all(isinstance(extent, tvm.tirx.IntImm) for extent in extents)
    places = places_read(ids, extents[axis], str(call.attrs["mode"]), builder)
    if by_rows:
        return [row_sparse_cotangent(table, places, cotangent), None]
    rows = rows_read(builder, table, along_axis(table, places, axis))
    source = copied_parameter(table, builder)
    if source is None:
        return [added_where_read(table, rows, cotangent), None]
    if table is source or not are_rows(table, rows):
        raise ConfigError(
            f"relax.take from parameter {source.name!r} has a row-sparse cotangent only along "
            "axis 0 of a static shape: take its rows and transpose these, or put ad.densify "
            "around it to accept a dense one"
        )
    return [row_sparse_copies(table, rows, cotangent), None]


defvjp("relax.take", _take)

# --- Rules that pass one on: operators linear in the table ----------------------------------------


def _scalar(expr: relax.Expr) -> relax.Expr:
    """Return a factor of one element as a scalar; raise for larger factors."""
    if any(int(extent) != 1 for extent in expr.ty.shape):
        raise ConfigError(
            "a table times a tensor of more than one element has no row-sparse cotangent: multiply "
            "after the lookup, or put ad.densify around the table"
        )
    return emit(op.reshape(expr, [])) if len(expr.ty.shape) else expr


def _astype(output: relax.Var, call: Any, cotangent: RowSparse, builder: Any) -> list:
    return [algebra.cast(cotangent, str(call.args[0].ty.dtype))]


def _negative(output: relax.Var, call: Any, cotangent: RowSparse, builder: Any) -> list:
    return [algebra.scale(cotangent, -1.0)]


def _multiply(output: relax.Var, call: Any, cotangent: RowSparse, builder: Any) -> list:
    """Forward: ``y = table * c`` or ``c * table``. Backward: ``cotangent * c``."""
    left, right = call.args
    if len(left.ty.shape) >= len(right.ty.shape):
        return [algebra.scale(cotangent, _scalar(right)), None]
    return [None, algebra.scale(cotangent, _scalar(left))]


def _divide(output: relax.Var, call: Any, cotangent: RowSparse, builder: Any) -> list:
    """Forward: ``y = table / c``. Backward: ``cotangent / c``."""
    factor = emit(op.divide(relax.const(1.0, cotangent.dtype), _scalar(call.args[1])))
    return [algebra.scale(cotangent, factor), None]


def _reshape(output: relax.Var, call: Any, cotangent: RowSparse, builder: Any) -> list:
    """Rows stay rows as long as the last axis is unchanged."""
    shape = tuple(int(extent) for extent in call.args[0].ty.shape)
    if cotangent.width != (shape[-1] if len(shape) > 1 else 1):
        raise ConfigError(
            f"a table reshaped from {shape} to rows of width {cotangent.width} has no row-sparse "
            "cotangent: keep the last axis, or put ad.densify around the table"
        )
    return [algebra.reshape(cotangent, shape), *[None] * (len(call.args) - 1)]


def _concat(output: relax.Var, call: Any, cotangent: RowSparse, builder: Any) -> list:
    """Forward: tables on top of each other. Backward: per table its rows; the rest is padding."""
    if _axis(call.attrs["axis"], output) != 0:
        raise ConfigError(
            f"tables joined by {call.op.name} along any axis but the first have no row-sparse "
            "cotangent: join the looked-up rows, or put ad.densify around the tables"
        )
    start, parts = 0, []
    for ty in call.args[0].ty.fields:
        shape = tuple(int(extent) for extent in ty.shape)
        rows = prod(shape) // cotangent.width  # one for each of the leading axes
        part = algebra.slice_rows(cotangent, start, (rows, cotangent.width))
        parts.append(algebra.reshape(part, shape))
        start += rows
    return [tuple(parts)]


defvjp("relax.astype", _astype, row_sparse=True)
defvjp("relax.negative", _negative, row_sparse=True)
defvjp("relax.multiply", _multiply, row_sparse=True)
defvjp("relax.divide", _divide, row_sparse=True)
for _name in ("reshape", "expand_dims", "squeeze"):
    defvjp(f"relax.{_name}", _reshape, row_sparse=True)
for _name in ("concat", "stack"):
    defvjp(f"relax.{_name}", _concat, row_sparse=True)
