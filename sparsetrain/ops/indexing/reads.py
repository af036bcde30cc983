# SPDX-License-Identifier: Apache-2.0
"""Operators that read by ids: the meaning of an id, the kernel, and the rows that are read.

All have the form ``y[index, rest] = x[places, rest]``: ids choose a place along the leading axes of
x for each index. The kernel is one pass over the result, so TVM schedules and fuses it like an
elementwise one. `take` of float rows is a lookup (`embedding`); all other forms of `take` are here.

As in NumPy a negative id counts from the end. An id that is still out of range reads as NaN, as
`False` for booleans, and as the lowest integer (the highest for unsigned ones): such a number, used
as an id itself, is out of range for every axis. `jax.numpy` does the same.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any, NamedTuple

import tvm
from tvm import relax, te, tirx

from sparsetrain.ops.operand_shapes import is_one, is_zero, size_of


class Place(NamedTuple):
    """An index along an axis, and whether it is inside."""

    index: Any
    inside: Any


def _sure(index: Any) -> Place:
    return Place(index, tirx.const(True, "bool"))


def from_end(index: Any, extent: Any) -> Any:
    """Return the place of an index along an axis; a negative index counts from the end."""
    return tirx.Select(index < 0, index + extent, index)


def _clip(index: Any, extent: Any) -> Any:
    return tirx.max(tirx.min(index, extent - 1), 0)


def _wrap(index: Any, extent: Any) -> Any:
    return tirx.floormod(index, tirx.max(extent, 1))  # 0 for an axis without rows, as in `_clip`


# Mode of `take` -> function from an id and the axis length to an index.
PLACES = {"fast": from_end, "clip": _clip, "wrap": _wrap}


def _place(ids: te.Tensor, where: Sequence[Any], extent: Any, mode: str = "fast") -> Place:
    """Return the place of ``ids[where]`` along an axis."""
    extent = tirx.Cast("int64", extent)
    index = PLACES[mode](tirx.Cast("int64", ids(*where)), extent)
    if mode != "fast":
        return Place(index, extent > 0)
    return Place(index, tirx.all(index >= 0, index < extent))


class Read(NamedTuple):
    """How a call reads by ids.

    Parameters
    ----------
    ids : list of relax.Expr
        The tensors of ids.
    chosen : list of list of expression
        For each tensor of ids its upper bounds: one for all ids, or one per index of the last axis.
        Empty if the mode moves invalid ids inside.
    axes : int
        Number of leading axes of the tensor that ids index.
    extents : callable
        Shapes of the tensor and the ids -> extents of the index into the result.
    places : callable
        Shape of the tensor, ids and an index -> a place for each of the axes.
    """

    ids: list[relax.Expr]
    chosen: list[list[Any]]
    axes: int
    extents: Callable[[Sequence[Any], Sequence[Sequence[Any]]], list[Any]]
    places: Callable[[Sequence[Any], Sequence[te.Tensor], Sequence[Any]], list[Place]]


def read_of(builder: relax.BlockBuilder | None, call: Any) -> Read:
    """Return how a call of an operator in `READS` reads by ids.

    Without a builder, a variable that holds a tuple of ids counts as an empty tuple.
    """
    return READS[call.op.name](builder, call)


def _tuples(builder: relax.BlockBuilder | None, call: Any) -> Read:
    """Read ``y[b, i] = x[b, *ids[b, i]]``: the last axis of ids has an id per leading axis of x."""
    ids, reads = call.args[1], call.op.name == "relax.gather_nd"
    batch = int(call.attrs["batch_dims"]) if reads else 0
    depth = int(ids.ty.shape[-1])

    def places(shape: Sequence[Any], ids: Sequence[te.Tensor], at: Sequence[Any]) -> list[Place]:
        chosen = (_place(ids[0], [*at, m], shape[batch + m]) for m in range(depth))
        return [*map(_sure, at[:batch]), *chosen]

    chosen = [*call.args[0].ty.shape][batch : batch + depth]
    return Read([ids], [chosen], batch + depth, lambda shape, of: [*of[0][:-1]], places)


def _elements(builder: relax.BlockBuilder | None, call: Any) -> Read:
    """Read ``y[i, j] = x[i, ids[i, j]]`` along an axis; ids may be shorter along other axes."""
    x, ids = call.args[:2]
    axis = _front(call.attrs["axis"], x)

    def places(shape: Sequence[Any], ids: Sequence[te.Tensor], at: Sequence[Any]) -> list[Place]:
        found = [*map(_sure, at)]
        found[axis] = _place(ids[0], at, shape[axis])
        return found

    return Read([ids], [[x.ty.shape[axis]]], len(x.ty.shape), lambda shape, of: [*of[0]], places)


def _tensors(builder: relax.BlockBuilder | None, call: Any) -> Read:
    """Read ``y[i] = x[ids[0][i], ids[1][i], ...]``, with ids broadcast against each other."""
    ids = _fields(builder, call.args[1])

    def places(shape: Sequence[Any], ids: Sequence[te.Tensor], at: Sequence[Any]) -> list[Place]:
        pairs = zip(ids, shape, strict=False)
        return [_place(tensor, broadcast_index(at, tensor.shape), n) for tensor, n in pairs]

    chosen = [[extent] for extent in [*call.args[0].ty.shape][: len(ids)]]
    return Read(ids, chosen, len(ids), lambda shape, of: _broadcast(of), places)


def along_axis(x: relax.Expr, ids: relax.Expr, axis: int, mode: str = "fast") -> Read:
    """Return the read ``y[i, n, j] = x[i, ids[n], j]``."""
    axis = _front(axis, x)

    def places(shape: Sequence[Any], ids: Sequence[te.Tensor], at: Sequence[Any]) -> list[Place]:
        return [*map(_sure, at[:axis]), _place(ids[0], at[axis:], shape[axis], mode)]

    chosen = [[x.ty.shape[axis]]] if mode == "fast" else []
    return Read([ids], chosen, axis + 1, lambda shape, of: [*shape[:axis], *of[0]], places)


def _broadcast(shapes: Sequence[Sequence[Any]]) -> list[Any]:
    """Return the broadcast shape: for each axis, the extent that is not 1."""
    rank = max(map(len, shapes))
    axes = [[shape[n] for shape in shapes if -n <= len(shape)] for n in range(-rank, 0)]
    return [next((n for n in axis if not is_one(n)), axis[0]) for axis in axes]


def broadcast_index(index: Sequence[Any], shape: Sequence[Any]) -> list[Any]:
    """Return the index into a tensor of `shape` that broadcasts to `index`."""
    own = index[len(index) - len(shape) :]
    return [0 if is_one(n) else i for i, n in zip(own, shape, strict=True)]


def _fields(builder: relax.BlockBuilder | None, ids: relax.Expr) -> list[relax.Expr]:
    """Return the tensors of ids, given as one tensor, a tuple, or a variable that holds a tuple."""
    if isinstance(ids.ty, relax.TensorType):
        return [ids]
    if isinstance(ids, relax.Tuple):
        return list(ids.fields)
    if builder is None:
        return []
    return [builder.emit(relax.TupleGetItem(ids, n)) for n in range(len(ids.ty.fields))]


def _front(axis: Any, x: relax.Expr) -> int:
    """Return an axis as a non-negative number; None means the only axis."""
    return int(axis or 0) % len(x.ty.shape)


class Rows(NamedTuple):
    """A tensor viewed as rows (height, width), and the row of each id (count,).

    An invalid id has the row number `height`. A row covers the axes that are not indexed if their
    lengths are static; otherwise each element is a row.
    """

    height: Any
    width: int
    count: Any
    places: relax.Var


def extents_of(x: relax.Expr, read: Read) -> list[Any]:
    """Return the extents of the leading result axes of a read of `x`, those that `places` maps."""
    return read.extents([*x.ty.shape], [[*ids.ty.shape] for ids in read.ids])


def rows_read(builder: relax.BlockBuilder, x: relax.Expr, read: Read) -> Rows:
    """Return the row numbers of a read of `x`, bound in the current block."""
    shape = list(x.ty.shape)
    rest = shape[read.axes :]
    by_row = all(isinstance(n, tirx.IntImm) for n in rest)
    behind = read.axes if by_row else len(shape)

    def places(x: te.Tensor, *ids: te.Tensor) -> te.Tensor:
        extents = read.extents(x.shape, [tensor.shape for tensor in ids])
        each = x.shape[read.axes : behind]

        def element(*index: Any) -> Any:
            at, inner = index[: len(extents)], index[len(extents) :]
            found = [*read.places(x.shape, ids, at), *map(_sure, inner)]
            flat: Any = tirx.const(0, "int64")
            for place, extent in zip(found, x.shape, strict=False):
                flat = flat * extent + place.index
            inside = tirx.all(*(place.inside for place in found))
            return tirx.Select(inside, flat, size_of(x.shape[:behind]))

        return te.compute([*extents, *each], element, "places")

    found = builder.emit_te(places, x, *read.ids)
    count = size_of([*extents_of(x, read), *shape[read.axes : behind]])
    if len(found.ty.shape) != 1 and not is_zero(count):
        found = builder.emit(relax.op.reshape(found, [count]))
    return Rows(size_of(shape[:behind]), prod(map(int, shape[behind:])), count, found)


def _legalized(builder: relax.BlockBuilder, call: Any) -> relax.Expr:
    name = call.op.name.removeprefix("relax.")
    if name == "take" and str(call.attrs["mode"]) not in PLACES:
        return _TVM_TAKE(builder, call)
    read = read_of(builder, call)

    def kernel(x: te.Tensor, *ids: te.Tensor) -> te.Tensor:
        extents = read.extents(x.shape, [tensor.shape for tensor in ids])
        outside = tirx.const(_nothing(str(x.dtype)), x.dtype)

        def element(*index: Any) -> Any:
            at, inner = index[: len(extents)], index[len(extents) :]
            found = read.places(x.shape, ids, at)
            value = x(*(place.index for place in found), *inner)
            return tirx.if_then_else(tirx.all(*(place.inside for place in found)), value, outside)

        return te.compute([*extents, *x.shape[read.axes :]], element, name)

    return builder.call_te(kernel, call.args[0], *read.ids, primfunc_name_hint=name)


def _nothing(dtype: str) -> Any:
    if dtype == "bool":
        return False
    if "float" in dtype:
        return float("nan")
    return tirx.max_value(dtype).value if dtype.startswith("uint") else tirx.min_value(dtype).value


_TVM_TAKE = tvm.ir.Op.get("relax.take").get_attr("FLegalize")
READS: dict[str, Callable[[relax.BlockBuilder | None, Any], Read]] = {
    "relax.gather_nd": _tuples,
    "relax.gather_elements": _elements,
    "relax.index_tensor": _tensors,
    "relax.take": lambda _, call: along_axis(
        call.args[0], call.args[1], call.attrs["axis"], str(call.attrs["mode"])
    ),
}

# Operator -> lowering that replaces TVM's.
LEGALIZE = dict.fromkeys(READS, _legalized)
# A write uses ids like a read.
READS |= {
    "relax.scatter_nd": _tuples,
    "relax.scatter_elements": _elements,
    "relax.index_put": _tensors,
}
