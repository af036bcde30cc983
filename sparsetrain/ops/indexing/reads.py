# SPDX-License-Identifier: Apache-2.0
"""Operators that read by ids: each element of the result looks for its place and reads it or NaN.

One pass over the result, which schedules and fuses like any map. `take` of rows is a lookup
(`embedding`); what is left of it, along other axes or of other dtypes, is here.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tvm
from tvm import relax, te, tirx

from sparsetrain.ops.indexing.places import Place, place, read
from sparsetrain.ops.operand_shapes import is_one


def at_tuples(x: te.Tensor, ids: te.Tensor, batch_dims: int = 0) -> te.Tensor:
    """``y[b, i] = x[b, *ids[b, i]]``: the last axis of ids has an id for each leading axis of x."""
    lead, depth = len(ids.shape) - 1, int(ids.shape[-1])
    rest = x.shape[batch_dims + depth :]

    def element(*index: Any) -> Any:
        row, inner = index[:lead], index[lead:]
        found = [place(ids, [*row, m], x.shape[batch_dims + m]) for m in range(depth)]
        return _read(x, row[:batch_dims], found, inner)

    return te.compute([*ids.shape[:-1], *rest], element, "gather_nd")


def at_elements(x: te.Tensor, ids: te.Tensor, axis: int) -> te.Tensor:
    """``y[i, j] = x[i, ids[i, j]]`` along `axis`."""

    def element(*index: Any) -> Any:
        found = place(ids, index, x.shape[axis])
        return _read(x, index[:axis], [found], index[axis + 1 :])

    return te.compute(ids.shape, element, "gather_elements")


def at_tensors(x: te.Tensor, ids: Sequence[te.Tensor]) -> te.Tensor:
    """``y[i] = x[ids[0][i], ids[1][i], ...]``, ids broadcast to one another."""
    shape = broadcast([tensor.shape for tensor in ids])

    def element(*index: Any) -> Any:
        row, inner = index[: len(shape)], index[len(shape) :]
        found = [
            place(tensor, broadcast_index(row, tensor.shape), x.shape[n])
            for n, tensor in enumerate(ids)
        ]
        return _read(x, [], found, inner)

    return te.compute([*shape, *x.shape[len(ids) :]], element, "index_tensor")


def along_axis(x: te.Tensor, ids: te.Tensor, axis: int) -> te.Tensor:
    """``y[i, n, j] = x[i, ids[n], j]`` along `axis`; an id below 0 is outside, as in a lookup."""
    rank = len(ids.shape)

    def element(*index: Any) -> Any:
        found = place(ids, index[axis : axis + rank], x.shape[axis], from_end=False)
        return _read(x, index[:axis], [found], index[axis + rank :])

    return te.compute([*x.shape[:axis], *ids.shape, *x.shape[axis + 1 :]], element, "take")


def reversed_parts(x: te.Tensor, lengths: te.Tensor, axis: int, batch: int) -> te.Tensor:
    """The first ``lengths[b]`` elements along `axis` in reverse; longer than the axis reads NaN."""

    def element(*index: Any) -> Any:
        length = tirx.Cast("int64", lengths(index[batch]))
        here = index[axis]
        there = tirx.Select(here < length, length - 1 - here, here)
        return _read(x, index[:axis], [Place(there, there < x.shape[axis])], index[axis + 1 :])

    return te.compute(x.shape, element, "reverse_sequence")


def _read(x: te.Tensor, before: Sequence[Any], found: Sequence[Place], after: Sequence[Any]) -> Any:
    index = [*before, *(p.index for p in found), *after]
    return read(x, index, [p.inside for p in found])


def broadcast(shapes: Sequence[Sequence[Any]]) -> list[Any]:
    """The shape that all are repeated to: of each axis the extent that is not 1."""
    rank = max(map(len, shapes))
    axes = [[shape[n] for shape in shapes if -n <= len(shape)] for n in range(-rank, 0)]
    return [next((n for n in axis if not is_one(n)), axis[0]) for axis in axes]


def broadcast_index(index: Sequence[Any], shape: Sequence[Any]) -> list[Any]:
    """Where a tensor of `shape` has what stands at `index` of what it is repeated to."""
    own = index[len(index) - len(shape) :]
    return [0 if is_one(n) else i for i, n in zip(own, shape, strict=True)]


# --- How operators are lowered ------------------------------------------------------------------


def fields(builder: relax.BlockBuilder, ids: relax.Expr) -> list[relax.Expr]:
    """The tensors of ids that an operator is given: one, a tuple written out or a variable."""
    if isinstance(ids.ty, relax.TensorType):
        return [ids]
    if isinstance(ids, relax.Tuple):
        return list(ids.fields)
    return [builder.emit(relax.TupleGetItem(ids, n)) for n in range(len(ids.ty.fields))]


def front(axis: Any, x: relax.Expr) -> int:
    """An axis counted from the front; none given is the only one."""
    return int(axis or 0) % len(x.ty.shape)


def _gather_nd(builder: relax.BlockBuilder, call: Any) -> relax.Expr:
    return builder.call_te(at_tuples, *call.args, int(call.attrs["batch_dims"]))


def _gather_elements(builder: relax.BlockBuilder, call: Any) -> relax.Expr:
    return builder.call_te(at_elements, *call.args, front(call.attrs["axis"], call.args[0]))


def _index_tensor(builder: relax.BlockBuilder, call: Any) -> relax.Expr:
    x, ids = call.args
    return builder.call_te(at_tensors, x, fields(builder, ids))


def _take(builder: relax.BlockBuilder, call: Any) -> relax.Expr:
    if str(call.attrs["mode"]) != "fast":
        return _TVM_TAKE(builder, call)
    return builder.call_te(along_axis, *call.args, front(call.attrs["axis"], call.args[0]))


def _reverse_sequence(builder: relax.BlockBuilder, call: Any) -> relax.Expr:
    x, lengths = call.args
    axes = (front(call.attrs[name], x) for name in ("seq_axis", "batch_axis"))
    return builder.call_te(reversed_parts, x, lengths, *axes)


_TVM_TAKE = tvm.ir.Op.get("relax.take").get_attr("FLegalize")

LEGALIZE = {
    "relax.gather_nd": _gather_nd,
    "relax.gather_elements": _gather_elements,
    "relax.index_tensor": _index_tensor,
    "relax.take": _take,
    "relax.reverse_sequence": _reverse_sequence,
}
