# SPDX-License-Identifier: Apache-2.0
"""Rules of operators that index: the reverse of a read is a write, that of a write a read.

All of them see tensors as rows with a place for each id (`sparsetrain.ops.indexing`). Elements read
or written outside their tensor get no gradient. Sums have one order, so gradients have the same
bits in every run.
"""

from __future__ import annotations

from math import prod
from typing import Any

from tvm import relax, te, tirx
from tvm.relax import op
from tvm.sym import Analyzer

from sparsetrain.ad.activation_rows import added_where_read
from sparsetrain.ad.cotangent import emit
from sparsetrain.ad.rules import row_sparse_cotangent
from sparsetrain.errors import ConfigError
from sparsetrain.ops.indexing import destinations, put_rows, reads, writes
from sparsetrain.ops.indexing.destinations import Rows
from sparsetrain.sparse_tensor import RowSparse


def _gather_nd(output: relax.Var, call: Any, cotangent: relax.Expr, builder: Any) -> list:
    """Forward: ``y[i] = x[*ids[i]]``. Backward: see `_cotangent_of_read`."""
    x, ids = call.args
    rows = destinations.of_tuples(builder, x, ids, int(call.attrs["batch_dims"]))
    return [_cotangent_of_read(x, rows, cotangent, call.op.name), None]


def _gather_elements(output: relax.Var, call: Any, cotangent: relax.Expr, builder: Any) -> list:
    """Forward: ``y[i][j] = x[i][ids[i][j]]`` along `axis`. Backward: see `_cotangent_of_read`."""
    x, ids = call.args
    rows = destinations.of_elements(builder, x, ids, reads.front(call.attrs["axis"], x))
    return [_cotangent_of_read(x, rows, cotangent, call.op.name), None]


def _index_tensor(output: relax.Var, call: Any, cotangent: relax.Expr, builder: Any) -> list:
    """Forward: ``y[i] = x[ids[0][i], ids[1][i], ...]``. Backward: see `_cotangent_of_read`."""
    x, ids = call.args
    rows = destinations.of_tensors(builder, x, reads.fields(builder, ids))
    return [_cotangent_of_read(x, rows, cotangent, call.op.name), None]


def _cotangent_of_read(
    x: relax.Expr, rows: Rows, cotangent: relax.Expr, name: str
) -> relax.Expr | RowSparse:
    """Cotangent of what was read by places: row-sparse where these are rows of a parameter.

    That of an activation is dense, added where it was read. That of other elements of a parameter
    whose shape is known when compiling would be as long as the parameter, so it is an error.
    """
    shape = x.ty.shape
    if isinstance(x, relax.DataflowVar) or not all(isinstance(n, tirx.IntImm) for n in shape):
        return added_where_read(x, rows, cotangent)
    shape = [int(extent) for extent in shape]
    table = 1, shape[0], prod(shape[1:])
    if not all(map(Analyzer().can_prove_equal, rows.shape, table)):
        raise ConfigError(
            f"{name} from parameter {x.name!r} has a row-sparse cotangent only where ids name its "
            "rows: put ad.densify around it to accept a dense one, or look up rows and pick from "
            "these"
        )
    outside = relax.const(shape[0], "int64")  # is padding
    is_outside = emit(op.less(rows.places, relax.const(0, "int64")))
    return row_sparse_cotangent(x, emit(op.where(is_outside, outside, rows.places)), cotangent)


def _reverse_sequence(output: relax.Var, call: Any, cotangent: relax.Expr, builder: Any) -> list:
    """Forward: the first elements of each row in reverse. Backward: the same."""
    axes = int(call.attrs["seq_axis"]), int(call.attrs["batch_axis"])
    return [op.reverse_sequence(cotangent, call.args[1], *axes), None]


def _written(output: relax.Var, call: Any, cotangent: relax.Expr, builder: Any) -> list:
    """Forward: ``out = x``, then ``out[ids[n]] = y[n]`` or ``+= y[n]``, in the order of n.

    Backward: of a sum the cotangent, and what of it lies at ``ids[n]``. Otherwise what is written
    last hides what it meets, be it of `x` or of an earlier n; those get 0.
    """
    x, _, y = call.args
    reduction = writes.reduction_of(call)
    if reduction not in ("add", "update"):
        raise ConfigError(
            f"{call.op.name}: no derivative for reduction {reduction!r}; it has one for 'update' "
            "and 'add'"
        )
    rows = writes.rows_of(builder, call)
    there = emit(rows.of(cotangent))
    if reduction == "add":
        return [cotangent, None, _read_back(builder, y, rows, there)]
    last = _last_writers(builder, rows, there)
    kept = builder.emit_te(_where_nobody_wrote, there, last)
    return [op.reshape(kept, x.ty.shape), None, _read_back(builder, y, rows, there, last)]


def _read_back(
    builder: relax.BlockBuilder,
    y: relax.Expr,
    rows: Rows,
    there: relax.Expr,
    last: relax.Expr | None = None,
) -> relax.Expr:
    """What lies at each place, in the shape of `y`; 0 for those that are not the last there."""
    read = builder.emit_te(_at_places, there, rows.places, *([] if last is None else [last]))
    return op.reshape(read, y.ty.shape)


def _last_writers(builder: relax.BlockBuilder, rows: Rows, like: relax.Expr) -> relax.Expr:
    """The number of the last place of each row, (batch, height, 1); -1 where there is none."""

    def none(like: te.Tensor) -> te.Tensor:
        return te.compute((*like.shape[:2], 1), lambda *_: tirx.const(-1, "int64"), "none")

    def numbers(places: te.Tensor) -> te.Tensor:
        return te.compute((*places.shape, 1), lambda _b, n, _: tirx.Cast("int64", n), "numbers")

    nobody, each = builder.emit_te(none, like), builder.emit_te(numbers, rows.places)
    return builder.emit(put_rows(nobody, rows.places, each, reduction="update"))


def _at_places(rows: te.Tensor, places: te.Tensor, last: te.Tensor | None = None) -> te.Tensor:
    def element(b: Any, n: Any, column: Any) -> Any:
        place, zero = places(b, n), tirx.const(0, rows.dtype)
        value = rows(b, place, column)
        if last is not None:
            value = tirx.if_then_else(last(b, place, 0) == n, value, zero)
        return tirx.if_then_else(place >= 0, value, zero)

    return te.compute((*places.shape, rows.shape[2]), element, "read_back")


def _where_nobody_wrote(rows: te.Tensor, last: te.Tensor) -> te.Tensor:
    def element(b: Any, row: Any, column: Any) -> Any:
        return tirx.Select(last(b, row, 0) < 0, rows(b, row, column), tirx.const(0, rows.dtype))

    return te.compute(rows.shape, element, "kept")


RULES = {
    "relax.gather_nd": _gather_nd,
    "relax.gather_elements": _gather_elements,
    "relax.index_tensor": _index_tensor,
    "relax.reverse_sequence": _reverse_sequence,
    "relax.scatter_nd": _written,
    "relax.scatter_elements": _written,
    "relax.index_put": _written,
}
