# SPDX-License-Identifier: Apache-2.0
"""Limits of the ids of each operator, for the check of arguments, which refuses others.

Kernels stay in bounds without it. One entry per operator; an extent known only in a call is a
symbol.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
from tvm import relax

from sparsetrain.errors import DataError
from sparsetrain.ops.operand_shapes import name_of, shape_of


class Limit(NamedTuple):
    """Of a tensor of ids: what they must lie below.

    Parameters
    ----------
    ids : relax.Expr
    extents : tuple of expression
        One for all, or one for each place of the last axis.
    operator : str
    from_end : bool
        Whether those below 0 count from the end.
    """

    ids: relax.Expr
    extents: tuple[Any, ...]
    operator: str
    from_end: bool = True


def limits(call: relax.Expr) -> list[Limit]:
    """What the operator of a call asks of its ids; nothing if it reads by none."""
    rule, shape = _LIMITS.get(name_of(call)), None
    if rule is not None:
        shape = shape_of(call.args[0])
    if rule is None or shape is None:
        return []
    found = rule(call, shape)
    name = name_of(call)
    return [Limit(ids, tuple(n), name, name not in _OF_TABLES) for ids, n in found if n]


def require_inside(ids: np.ndarray, name: str, extents: Sequence[Any], limit: Limit) -> None:
    """Refuse ids of the argument `name` that stand for nothing.

    Raises
    ------
    DataError
        Naming the first of them, its place and the length of the axis.
    """
    sizes = np.array(extents, "int64")
    rows = ids.reshape(-1, len(sizes))  # of other shape the ids may be, their order is the same
    outside = (rows < (-sizes if limit.from_end else 0)) | (rows >= sizes)
    if outside.any():
        row, column = np.argwhere(outside)[0]
        place = np.unravel_index(row * len(sizes) + column, ids.shape)
        raise DataError(
            f"argument {name!r}: id {int(ids[place])} at {tuple(map(int, place))} is outside the "
            f"axis of {int(sizes[column])} that {limit.operator} goes by"
        )


_Found = Iterable[tuple[relax.Expr, list[Any]]]


def _tuples(call: relax.Call, shape: list[Any]) -> _Found:
    batch = int(call.attrs["batch_dims"]) if name_of(call) == "relax.gather_nd" else 0
    depth = call.args[1].ty.shape[-1]
    return [(call.args[1], shape[batch : batch + int(depth)])]


def _elements(call: relax.Call, shape: list[Any]) -> _Found:
    return [(call.args[1], [shape[int(call.attrs["axis"])]])]


def _tensors(call: relax.Call, shape: list[Any]) -> _Found:
    ids = call.args[1]
    each = [ids] if isinstance(ids.ty, relax.TensorType) else getattr(ids, "fields", ())
    return [(tensor, [extent]) for tensor, extent in zip(each, shape, strict=False)]


def _rows(call: relax.Call, shape: list[Any]) -> _Found:
    """Of a table; of one whose rows are known `compiler.arguments` checks ids in one pass."""
    return [(call.args[1], [shape[0]])]


def _along_axis(call: relax.Call, shape: list[Any]) -> _Found:
    """Only the mode "fast" takes ids as they come."""
    is_fast = str(call.attrs["mode"]) == "fast"
    return [(call.args[1], [shape[int(call.attrs["axis"] or 0)]])] if is_fast else []


_OF_TABLES = frozenset({"relax.sparsetrain.lookup", "relax.sparsetrain.embedding_bag"})
_LIMITS: dict[str, Callable[[relax.Call, list[Any]], _Found]] = {
    "relax.gather_nd": _tuples,
    "relax.scatter_nd": _tuples,
    "relax.gather_elements": _elements,
    "relax.scatter_elements": _elements,
    "relax.index_tensor": _tensors,
    "relax.index_put": _tensors,
    "relax.take": _along_axis,
    **dict.fromkeys(_OF_TABLES, _rows),
}
