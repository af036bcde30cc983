# SPDX-License-Identifier: Apache-2.0
"""Destinations of ids, in one form for all operators: a tensor as rows of one width.

``x`` (any shape) is viewed as (batch, height, width); ``places`` int64 is the row of each id, -1
for none: (batch, count), or (1, count) if it is the same in every part of the batch. All reads and
writes have this form, so one kernel writes (`put_rows`), and derivatives are written once. The
batch is the leading axes along which ids choose nothing. A row spans the trailing axes along which
ids choose nothing, if their lengths are known at compile time; otherwise each element is a row.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import takewhile
from math import prod
from typing import Any, NamedTuple

from tvm import relax, te, tirx
from tvm_ffi import structural_equal

from sparsetrain.ops.indexing.places import Place, place
from sparsetrain.ops.indexing.reads import broadcast, broadcast_index, front
from sparsetrain.ops.operand_shapes import size_of


class Rows(NamedTuple):
    """A tensor as rows, and places among them.

    Parameters
    ----------
    batch : expression
        How many parts.
    height : expression
        How many rows a part has.
    width : int
    count : expression
        How many places a part has.
    places : relax.Var
        (batch, count) int64, or (1, count) for all parts; bound in the block that is being built.
    """

    batch: Any
    height: Any
    width: int
    count: Any
    places: relax.Var

    @property
    def shape(self) -> list[Any]:
        """Of the tensor that is indexed, as rows."""
        return [self.batch, self.height, self.width]

    def of(self, x: relax.Expr) -> relax.Expr:
        """The tensor that is indexed, as (batch, height, width)."""
        return relax.op.reshape(x, self.shape)

    def updates(self, y: relax.Expr) -> relax.Expr:
        """What stands beside the ids, as (batch, count, width)."""
        return relax.op.reshape(y, [self.batch, self.count, self.width])


def of_tuples(
    builder: relax.BlockBuilder, x: relax.Expr, ids: relax.Expr, batch_dims: int = 0
) -> Rows:
    """Of ``x[b, *ids[b, i]]``: see `reads.at_tuples`."""
    shape = list(ids.ty.shape)
    lead, depth = shape[batch_dims:-1], int(shape[-1])

    def chosen(x: te.Tensor, ids: Sequence[te.Tensor], row: Sequence[Any]) -> list[Place]:
        return [place(ids[0], [*row, m], x.shape[batch_dims + m]) for m in range(depth)]

    return _rows(builder, x, [ids], _Axes(batch_dims, lead, depth), chosen)


def of_elements(builder: relax.BlockBuilder, x: relax.Expr, ids: relax.Expr, axis: int) -> Rows:
    """Of ``x[i, ids[i, j]]``: see `reads.at_elements`. Ids may be shorter than x along any axis."""
    shape, extents = list(ids.ty.shape), list(x.ty.shape)
    pairs = zip(shape[:axis], extents[:axis], strict=True)
    batch = len(list(takewhile(lambda pair: structural_equal(*pair), pairs)))

    def chosen(x: te.Tensor, ids: Sequence[te.Tensor], row: Sequence[Any]) -> list[Place]:
        found = [_sure(i) for i in row]
        found[axis] = place(ids[0], row, x.shape[axis])
        return found[batch:]

    return _rows(builder, x, [ids], _Axes(batch, shape[batch:], len(shape) - batch), chosen)


def of_tensors(builder: relax.BlockBuilder, x: relax.Expr, ids: Sequence[relax.Expr]) -> Rows:
    """Of ``x[ids[0][i], ids[1][i], ...]``: see `reads.at_tensors`."""
    shape = broadcast([tensor.ty.shape for tensor in ids])

    def chosen(x: te.Tensor, ids: Sequence[te.Tensor], row: Sequence[Any]) -> list[Place]:
        return [
            place(tensor, broadcast_index(row, tensor.shape), x.shape[n])
            for n, tensor in enumerate(ids)
        ]

    return _rows(builder, x, ids, _Axes(0, shape, len(ids)), chosen)


def of_axis(builder: relax.BlockBuilder, x: relax.Expr, ids: relax.Expr, axis: int) -> Rows:
    """Of ``x[i, ids[n], j]``: see `reads.along_axis`."""
    axis = front(axis, x)

    def chosen(x: te.Tensor, ids: Sequence[te.Tensor], row: Sequence[Any]) -> list[Place]:
        return [place(ids[0], row, x.shape[axis], from_end=False)]

    return _rows(builder, x, [ids], _Axes(axis, list(ids.ty.shape), 1, shared=True), chosen)


class _Axes(NamedTuple):
    """Which axes of a tensor ids choose from: `depth` of them, behind those of the batch.

    They do so for every index below `lead`; if `shared`, alike in every part of the batch.
    """

    batch: int
    lead: list[Any]
    depth: int
    shared: bool = False


def _sure(index: Any) -> Place:
    return Place(index, tirx.const(True, "bool"))


def _rows(
    builder: relax.BlockBuilder,
    x: relax.Expr,
    ids: Sequence[relax.Expr],
    axes: _Axes,
    chosen: Callable[[te.Tensor, Sequence[te.Tensor], Sequence[Any]], list[Place]],
) -> Rows:
    """Places of ``chosen(x, ids, index)``, whose index begins with the batch unless `shared`."""
    shape = list(x.ty.shape)
    behind = axes.batch + axes.depth
    batch, indexed, rest, width = shape[: axes.batch], shape[axes.batch : behind], shape[behind:], 1
    if all(isinstance(n, tirx.IntImm) for n in rest):
        rest, width = [], prod(map(int, rest))
    own, each = [] if axes.shared else batch, [*axes.lead, *rest]
    height, count, known = size_of([*indexed, *rest]), size_of(each), len(own) + len(axes.lead)

    def places(x: te.Tensor, *ids: te.Tensor) -> te.Tensor:
        def element(*index: Any) -> Any:
            index = index if own else index[1:]
            found = [*chosen(x, ids, index[:known]), *map(_sure, index[known:])]
            flat: Any = tirx.const(0, "int64")
            for p, extent in zip(found, x.shape[axes.batch :], strict=False):
                flat = flat * extent + p.index
            inside = tirx.all(*(p.inside for p in found))
            return tirx.Select(inside, flat, tirx.const(-1, "int64"))

        return te.compute([*(own or [1]), *each], element, "places")

    found = builder.emit_te(places, x, *ids)
    if len(own) > 1 or len(each) != 1:
        found = builder.emit(relax.op.reshape(found, [size_of(own), count]))
    return Rows(size_of(batch), height, width, count, found)
