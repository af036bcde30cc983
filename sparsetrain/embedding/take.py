# SPDX-License-Identifier: Apache-2.0
"""Pass that replaces `relax.take` of table rows with this package's lookup.

TVM's kernel for `take` is serial and reads out of bounds for an invalid id; ours is parallel, and
an id outside the table reads as NaN. A negative id counts from the end, as in every `take`. The
exported module still shows `relax.take`; the rewrite happens at compile time.
"""

from __future__ import annotations

from typing import Any

import tvm
from tvm import relax, te, tirx
from tvm.relax.expr_functor import mutator

from sparsetrain.embedding.lookup_operators import lookup
from sparsetrain.kernels.rewrite import Rewriter, is_call, rewrite_functions
from sparsetrain.ops.indexing.reads import from_end


def take_as_lookup(module: tvm.IRModule) -> tvm.IRModule:
    """Replace ``take(table, ids, axis=0, mode="fast")`` of a floating-point matrix."""
    return rewrite_functions(module, _AsLookup(module))


@mutator
class _AsLookup(Rewriter):
    def visit_call_(self, call: relax.Call) -> relax.Expr:
        call = super().visit_call_(call)
        if not _takes_rows(call):
            return call
        table, ids = call.args
        return lookup(table, ids if _are_checked(table, ids) else self._from_end(table, ids))

    def _from_end(self, table: relax.Expr, ids: relax.Expr) -> relax.Expr:
        """Return the row number of each id; a negative id counts from the end."""
        if isinstance(ids, tvm.ir.GenericConst) and (ids.value.numpy() >= 0).all():
            return ids
        return self.builder_.emit_te(_rows_from_end, ids, table.ty.shape[0])


def _rows_from_end(ids: te.Tensor, count: Any) -> te.Tensor:
    rows = tirx.Cast("int64", count)
    return te.compute(
        ids.shape, lambda *at: from_end(tirx.Cast("int64", ids(*at)), rows), "rows_from_end"
    )


def _are_checked(table: relax.Expr, ids: relax.Expr) -> bool:
    """Whether `compiler.arguments` refuses negative ids, because table and ids are arguments."""
    arguments = not any(isinstance(given, relax.DataflowVar) for given in (table, ids))
    return arguments and isinstance(ids, relax.Var) and isinstance(table.ty.shape[0], tirx.IntImm)


def _takes_rows(call: relax.Call) -> bool:
    if not is_call(call, "relax.take"):
        return False
    table, ids = (argument.ty for argument in call.args)
    return (
        isinstance(table, relax.TensorType)
        and table.ndim == 2
        and isinstance(table.shape[1], tirx.IntImm)
        and int(table.shape[1]) > 0
        and str(table.dtype) in ("float32", "float64")
        and isinstance(ids, relax.TensorType)
        and ids.ndim >= 1
        and call.attrs["axis"] == 0
        and str(call.attrs["mode"]) == "fast"
    )
