# SPDX-License-Identifier: Apache-2.0
"""What an operator goes by, in one form: a tensor as rows of one width, and the place of each id.

``x`` (any shape) is seen as (height, width), ``places`` (count,) int64 says which of those rows
each id stands for, -1 for none. Reads and writes of every operator have this form, so there is one
kernel that writes (`put_rows`), and derivatives are written once. Rows are what no id chooses from,
if its lengths are known when compiling; otherwise each element is a row of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any, NamedTuple

from tvm import relax, te, tirx

from sparsetrain.indexing.places import Place, place
from sparsetrain.indexing.reads import broadcast, broadcast_index, front
from sparsetrain.operands import size_of


class Rows(NamedTuple):
    """A tensor as rows, and places among them.

    Parameters
    ----------
    height : expression
        How many rows.
    width : int
    count : expression
        How many places.
    places : relax.Var
        (count,) int64, bound in the block that is being built.
    """

    height: Any
    width: int
    count: Any
    places: relax.Var

    def of(self, x: relax.Expr) -> relax.Expr:
        """The tensor that is indexed, as (height, width)."""
        return relax.op.reshape(x, [self.height, self.width])

    def updates(self, y: relax.Expr) -> relax.Expr:
        """What stands beside the ids, as (count, width)."""
        return relax.op.reshape(y, [self.count, self.width])


def of_tuples(
    builder: relax.BlockBuilder, x: relax.Expr, ids: relax.Expr, batch_dims: int = 0
) -> Rows:
    """Of ``x[b, *ids[b, i]]``: see `reads.at_tuples`."""
    lead, depth = list(ids.ty.shape)[:-1], int(ids.ty.shape[-1])

    def chosen(x: te.Tensor, ids: Sequence[te.Tensor], row: Sequence[Any]) -> list[Place]:
        found = [place(ids[0], [*row, m], x.shape[batch_dims + m]) for m in range(depth)]
        return [*map(_sure, row[:batch_dims]), *found]

    return _rows(builder, x, [ids], lead, batch_dims + depth, chosen)


def of_elements(builder: relax.BlockBuilder, x: relax.Expr, ids: relax.Expr, axis: int) -> Rows:
    """Of ``x[i, ids[i, j]]``: see `reads.at_elements`."""

    def chosen(x: te.Tensor, ids: Sequence[te.Tensor], row: Sequence[Any]) -> list[Place]:
        found = [_sure(i) for i in row]
        found[axis] = place(ids[0], row, x.shape[axis])
        return found

    return _rows(builder, x, [ids], list(ids.ty.shape), len(x.ty.shape), chosen)


def of_tensors(builder: relax.BlockBuilder, x: relax.Expr, ids: Sequence[relax.Expr]) -> Rows:
    """Of ``x[ids[0][i], ids[1][i], ...]``: see `reads.at_tensors`."""
    shape = broadcast([tensor.ty.shape for tensor in ids])

    def chosen(x: te.Tensor, ids: Sequence[te.Tensor], row: Sequence[Any]) -> list[Place]:
        return [
            place(tensor, broadcast_index(row, tensor.shape), x.shape[n])
            for n, tensor in enumerate(ids)
        ]

    return _rows(builder, x, ids, shape, len(ids), chosen)


def of_axis(builder: relax.BlockBuilder, x: relax.Expr, ids: relax.Expr, axis: int) -> Rows:
    """Of ``x[i, ids[n], j]``: see `reads.along_axis`."""
    axis, rank = front(axis, x), len(ids.ty.shape)

    def chosen(x: te.Tensor, ids: Sequence[te.Tensor], row: Sequence[Any]) -> list[Place]:
        found = place(ids[0], row[axis : axis + rank], x.shape[axis], from_end=False)
        return [*map(_sure, row[:axis]), found, *map(_sure, row[axis + rank :])]

    return _rows(builder, x, [ids], [*list(x.ty.shape)[:axis], *ids.ty.shape], axis + 1, chosen)


def _sure(index: Any) -> Place:
    return Place(index, tirx.const(True, "bool"))


def _rows(
    builder: relax.BlockBuilder,
    x: relax.Expr,
    ids: Sequence[relax.Expr],
    lead: list[Any],
    depth: int,
    chosen: Any,
) -> Rows:
    """Places of ``chosen(x, ids, index)`` for every index below `lead`, of `depth` axes of x."""
    shape = list(x.ty.shape)
    rest, width = shape[depth:], 1
    if all(isinstance(n, tirx.IntImm) for n in rest):
        rest, width = [], prod(map(int, rest))
    each = [*lead, *rest]

    def places(x: te.Tensor, *ids: te.Tensor) -> te.Tensor:
        def element(*index: Any) -> Any:
            found = [*chosen(x, ids, index[: len(lead)]), *map(_sure, index[len(lead) :])]
            flat: Any = tirx.const(0, "int64")
            for p, extent in zip(found, x.shape, strict=False):
                flat = flat * extent + p.index
            inside = tirx.all(*(p.inside for p in found))
            return tirx.Select(inside, flat, tirx.const(-1, "int64"))

        return te.compute(each, element, "places")

    found, count = builder.emit_te(places, x, *ids), size_of(each)
    if len(each) != 1:
        found = builder.emit(relax.op.reshape(found, [count]))
    return Rows(size_of(shape[: depth + len(rest)]), width, count, found)
