# SPDX-License-Identifier: Apache-2.0
"""Reads from copies of a parameter, with rules that keep its cotangent row-sparse.

An operator that moves, repeats or joins its arguments computes no new numbers: given a table, it
returns a copy of the table in a different shape. If whole rows of the copy are read, the cotangent
is row-sparse, and the operators' rules pass it back to the table; any other read is an error. A
slice, or the used parts of a split, may have a dense cotangent if they have at least half of the
elements, since the cotangent then takes at most twice their memory.
"""

from __future__ import annotations

from math import prod
from typing import Any

from tvm import relax, tirx
from tvm.relax import op
from tvm_ffi import structural_equal

from sparsetrain.ad.bindings import used_vars
from sparsetrain.ad.cotangent import emit
from sparsetrain.errors import ConfigError
from sparsetrain.ops.indexing.reads import Rows
from sparsetrain.ops.operand_shapes import name_of
from sparsetrain.sparse_tensor import RowSparse

# Operators that return elements of their arguments, possibly times one number.
_COPIES = frozenset(
    f"relax.{name}"
    for name in (
        *("permute_dims", "reshape", "expand_dims", "squeeze", "flatten", "nn.batch_flatten"),
        *("concat", "stack", "split", "strided_slice", "flip", "nn.pad"),
        *("broadcast_to", "tile", "repeat", "einsum", "astype", "negative"),
    )
)
_TIMES = frozenset({"relax.multiply", "relax.divide"})


def copied_parameter(x: relax.Expr, builder: relax.BlockBuilder) -> relax.Var | None:
    """Return the function argument that `x` copies its rows from; `x` itself if it is an argument.

    Return None for an activation, and for an argument with a single row.
    """
    open_, seen = [x], set()
    while open_:
        var = open_.pop()
        if var in seen:
            continue
        seen.add(var)
        if isinstance(var, relax.DataflowVar):
            open_ += _copied(builder.lookup_binding(var))
        elif var is x or _has_rows(var):
            return var
    return None


def _has_rows(var: relax.Var) -> bool:
    """Whether a float tensor has more than one row."""
    shape = getattr(var.ty, "shape", None)
    if shape is None or "float" not in str(var.ty.dtype):
        return False
    rows = list(shape)[:-1] or list(shape)
    return any(not isinstance(n, tirx.IntImm) or int(n) > 1 for n in rows)


def _copied(value: Any) -> list[relax.Var]:
    """Return the variables from which a value copies its elements."""
    if not isinstance(value, relax.Call):
        return used_vars(value) if value is not None else []
    name = name_of(value)
    if name in _TIMES:
        return [v for a, b in (value.args, value.args[::-1]) if _is_one(b) for v in used_vars(a)]
    if name == "relax.einsum" and "," in str(value.attrs["subscripts"]):
        return []
    return used_vars(value) if name in _COPIES else []


def _is_one(x: relax.Expr) -> bool:
    return all(isinstance(n, tirx.IntImm) and int(n) == 1 for n in x.ty.shape)


def is_small_part(part: Any, whole: Any) -> bool:
    """Whether an extent may be less than half of `whole`; unequal symbolic ones count as small."""
    if not isinstance(part, tirx.IntImm):
        return not structural_equal(part, whole)
    return not isinstance(whole, tirx.IntImm) or 0 < 2 * int(part) < int(whole)


def are_rows(x: relax.Expr, rows: Rows) -> bool:
    """Whether whole rows along the last axis of `x` were read, and the shape of `x` is static."""
    extents = list(x.ty.shape)
    return all(isinstance(n, tirx.IntImm) for n in extents) and rows.width == int(extents[-1])


def row_sparse_copies(x: relax.Expr, rows: Rows, cotangent: relax.Expr) -> RowSparse:
    """Return the row-sparse cotangent of `x` after a read of `rows`."""
    shape = tuple(int(extent) for extent in x.ty.shape)
    values = emit(op.reshape(cotangent, [rows.count, rows.width]))
    return RowSparse(rows.places, values, prod(shape[:-1]), shape=shape)


def require_most_read(call: Any, cotangent: Any) -> None:
    """Refuse a split of a parameter if less than half of its rows are read.

    Raises
    ------
    ConfigError
        If less than half are read; the message names the parameter.
    """
    if name_of(call) != "relax.split" or not isinstance(cotangent, tuple) or None not in cotangent:
        return
    x, axis = call.args[0], int(call.attrs["axis"])
    source = copied_parameter(x, relax.BlockBuilder.current())
    if source is None or not isinstance(whole := x.ty.shape[axis], tirx.IntImm):
        return
    read = [
        ty.shape[axis] for ty, c in zip(call.ty.fields, cotangent, strict=True) if c is not None
    ]
    columns = axis % len(x.ty.shape) == len(x.ty.shape) - 1 and source is x
    if not columns and is_small_part(tirx.IntImm("int64", sum(map(int, read))), whole):
        raise ConfigError(
            f"relax.split of parameter {source.name!r}, most of it unread, has a dense "
            "cotangent: slice the read rows, or put ad.densify around it to accept a dense one"
        )
