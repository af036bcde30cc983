# SPDX-License-Identifier: Apache-2.0
"""Upper bounds of the ids of each operator, for the check of arguments.

Kernels stay in bounds without this check. Extents may be symbolic.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from tvm import relax

from sparsetrain.errors import DataError
from sparsetrain.ops.indexing.reads import READS, read_of
from sparsetrain.ops.operand_shapes import name_of, shape_of


class Limit(NamedTuple):
    """A tensor of ids and its upper bounds.

    Parameters
    ----------
    ids : relax.Expr
    extents : tuple of expression
        One bound for all ids, or one per index of the last axis.
    operator : str
    from_end : bool
        Whether negative ids count from the end.
    """

    ids: relax.Expr
    extents: tuple[Any, ...]
    operator: str
    from_end: bool = True


def limits(call: relax.Expr) -> list[Limit]:
    """Return the limits of a call's ids; an empty list if the call uses no ids."""
    name = name_of(call)
    if name not in _OF_TABLES | READS.keys() or shape_of(call.args[0]) is None:
        return []
    if (
        name in _OF_TABLES
    ):  # for a static number of rows, `compiler.arguments` checks ids in one pass
        return [Limit(call.args[1], (call.args[0].ty.shape[0],), name, from_end=False)]
    read = read_of(None, call)
    return [Limit(ids, tuple(n), name) for ids, n in zip(read.ids, read.chosen, strict=False) if n]


def require_inside(ids: np.ndarray, name: str, extents: Sequence[Any], limit: Limit) -> None:
    """Refuse ids of the argument `name` that are out of range.

    Raises
    ------
    DataError
        If there are any; the message names the first one, its position and the length of the axis.
    """
    sizes = np.array(extents, "int64")
    rows = ids.reshape(-1, len(sizes))  # the ids may have a different shape, in the same order
    outside = (rows < (-sizes if limit.from_end else 0)) | (rows >= sizes)
    if outside.any():
        row, column = np.argwhere(outside)[0]
        place = np.unravel_index(row * len(sizes) + column, ids.shape)
        raise DataError(
            f"argument {name!r}: id {int(ids[place])} at {tuple(map(int, place))} is outside the "
            f"axis of length {int(sizes[column])} that {limit.operator} indexes"
        )


_OF_TABLES = frozenset({"relax.sparsetrain.lookup", "relax.sparsetrain.embedding_bag"})
