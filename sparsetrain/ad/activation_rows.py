# SPDX-License-Identifier: Apache-2.0
"""Reverse rule of `take` from an activation: scatter-add the cotangent into a dense tensor.

TVM's scatter ignores the mode of `take`, writes out of bounds for a negative axis, and takes only
one-dimensional ids. So this module converts ids to row numbers and adds with `scatter_add_rows`.
"""

from __future__ import annotations

from typing import Any

from tvm import relax, te, tirx
from tvm.relax import op

from sparsetrain.ad.cotangent import emit
from sparsetrain.errors import ConfigError
from sparsetrain.ops.indexing.reads import PLACES, Rows
from sparsetrain.ops.operand_shapes import is_zero
from sparsetrain.sparse_tensor.algebra import scatter_add_rows


def places_read(ids: relax.Expr, extent: Any, mode: str, builder: relax.BlockBuilder) -> relax.Expr:
    """Map `ids` (any shape) to positions on an axis of `extent` elements, static or symbolic.

    The result is int64 if `ids` are neither int32 nor int64, since a narrower dtype may not hold
    `extent`.
    """
    if mode not in PLACES:
        raise ConfigError(f"relax.take: mode {mode!r} has no derivative; use {sorted(PLACES)}")
    place = PLACES[mode]

    def places(ids: te.Tensor, extent: Any) -> te.Tensor:
        dtype = ids.dtype if ids.dtype in ("int32", "int64") else "int64"
        bound = tirx.Cast(dtype, extent)
        return te.compute(
            ids.shape, lambda *index: place(ids(*index).astype(dtype), bound), "places"
        )

    return builder.emit_te(places, ids, extent)


def added_where_read(x: relax.Expr, rows: Rows, cotangent: relax.Expr) -> relax.Expr:
    """Return zeros like `x`, with the cotangent added, in order, to the rows that were read."""
    if is_zero(rows.count):  # `reshape` reads a 0 as "copy this extent"
        return op.zeros(x.ty.shape, x.ty.dtype)
    updates = emit(op.reshape(cotangent, [rows.count, rows.width]))
    shape = relax.ShapeExpr([rows.height, rows.width])
    added = emit(scatter_add_rows(shape, rows.places, updates, rows.places, pooled=0))
    return op.reshape(added, x.ty.shape)
