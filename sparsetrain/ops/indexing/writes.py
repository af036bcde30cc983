# SPDX-License-Identifier: Apache-2.0
"""Operators that write by ids, each as `put_rows`: of equal ids the later one writes later.

What would be written outside is left out. It is as if one thread did all, however many there are.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tvm import relax, tirx

from sparsetrain.errors import ConfigError
from sparsetrain.ops.indexing.destinations import Rows, of_elements, of_tensors, of_tuples
from sparsetrain.ops.indexing.put_rows import put_rows
from sparsetrain.ops.indexing.put_rows_arguments import COMBINE
from sparsetrain.ops.indexing.reads import fields, front


def rows_of(builder: relax.BlockBuilder, call: Any) -> Rows:
    """What a call of an operator that writes writes to, as rows; its ids are its argument 1."""
    return _ROWS[call.op.name](builder, call)


def reduction_of(call: Any) -> str:
    """What becomes of what is written to; a key of `COMBINE`."""
    if call.op.name == "relax.index_put":
        return "add" if bool(call.attrs["accumulate"]) else "update"
    found = str(call.attrs["reduction"])
    if found not in COMBINE:
        raise ConfigError(f"{call.op.name}: no reduction {found!r}; there are {sorted(COMBINE)}")
    return found


def _tuples(builder: relax.BlockBuilder, call: Any) -> Rows:
    return of_tuples(builder, *call.args[:2])


def _elements(builder: relax.BlockBuilder, call: Any) -> Rows:
    x, ids, _ = call.args
    return of_elements(builder, x, ids, front(call.attrs["axis"], x))


def _tensors(builder: relax.BlockBuilder, call: Any) -> Rows:
    x, ids, _ = call.args
    return of_tensors(builder, x, fields(builder, ids))


_ROWS: dict[str, Callable[[relax.BlockBuilder, Any], Rows]] = {
    "relax.scatter_nd": _tuples,
    "relax.scatter_elements": _elements,
    "relax.index_put": _tensors,
}


def _written(builder: relax.BlockBuilder, call: Any) -> relax.Expr:
    x, _, y = call.args
    if any(isinstance(n, tirx.IntImm) and not int(n) for n in (*x.ty.shape, *y.ty.shape)):
        return x  # nothing is written; TVM reshapes nothing to nothing
    rows = rows_of(builder, call)
    data, updates = builder.emit(rows.of(x)), builder.emit(rows.updates(y))
    written = put_rows(data, rows.places, updates, reduction=reduction_of(call))
    return relax.op.reshape(builder.emit(written), x.ty.shape)


LEGALIZE = dict.fromkeys(_ROWS, _written)
