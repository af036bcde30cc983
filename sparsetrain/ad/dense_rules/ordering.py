# SPDX-License-Identifier: Apache-2.0
"""Elements in another order: sorted, the k largest, the middle ones. Each keeps its cotangent.

Where the result does not say where its elements came from, the order is found once more: one sort.
Of equal elements that one counts which the forward pass took.
"""

from __future__ import annotations

from typing import Any

from tvm import relax
from tvm.relax import op

from sparsetrain.ad.cotangent import emit


def _put_back(x: relax.Expr, ids: relax.Expr, cotangent: relax.Expr, axis: int) -> relax.Expr:
    """Zeros like `x` with the cotangent at `ids`, which do not repeat along `axis`."""
    zeros = emit(op.zeros(x.ty.shape, str(x.ty.dtype)))
    return op.scatter_elements(zeros, ids, cotangent, axis, "update")


def _sort(output: relax.Var, call: Any, cotangent: relax.Expr, builder: Any) -> list:
    """Forward: ``y = x[argsort(x)]``. Backward: the cotangent to where its element was."""
    x, axis = call.args[0], int(call.attrs["axis"])
    ids = emit(op.argsort(x, axis, bool(call.attrs["descending"]), "int64"))
    return [_put_back(x, ids, cotangent, axis)]


def _topk(output: relax.Var, call: Any, cotangent: relax.Expr, builder: Any) -> list:
    """Backward: the values' cotangent to where they were; ids have none."""
    x, axis = call.args[0], int(call.attrs["axis"])
    if str(call.attrs["ret_type"]) == "both":
        cotangent, ids = relax.TupleGetItem(cotangent, 0), relax.TupleGetItem(output, 1)
    else:
        largest = bool(call.attrs["largest"])
        ids = op.topk(x, int(call.attrs["k"]), axis, "indices", largest, "int64")
    return [_put_back(x, emit(ids), emit(cotangent), axis)]


RULES = {
    "relax.sort": _sort,
    "relax.topk": _topk,
}
