# SPDX-License-Identifier: Apache-2.0
"""`relax.take` of table rows becomes this package's lookup when a program is compiled.

TVM's kernel for it is serial and reads whatever memory an id points at; ours is parallel, and an
id outside the table reads as NaN. What a model prints stays as its author wrote it.
"""

from __future__ import annotations

import tvm
from tvm import relax
from tvm.relax.expr_functor import mutator

from sparsetrain.embedding.operators import lookup
from sparsetrain.kernels.rewrite import Rewriter, is_call, rewrite_functions


def take_as_lookup(module: tvm.IRModule) -> tvm.IRModule:
    """Replace ``take(table, ids, axis=0, mode="fast")`` of a floating-point matrix."""
    return rewrite_functions(module, _AsLookup(module))


@mutator
class _AsLookup(Rewriter):
    def visit_call_(self, call: relax.Call) -> relax.Expr:
        call = super().visit_call_(call)
        return lookup(*call.args) if _takes_rows(call) else call


def _takes_rows(call: relax.Call) -> bool:
    if not is_call(call, "relax.take"):
        return False
    table, ids = (argument.ty for argument in call.args)
    return (
        isinstance(table, relax.TensorType)
        and table.ndim == 2
        and isinstance(table.shape[1], tvm.tirx.IntImm)
        and str(table.dtype) in ("float32", "float64")
        and isinstance(ids, relax.TensorType)
        and ids.ndim >= 1
        and call.attrs["axis"] == 0
        and str(call.attrs["mode"]) == "fast"
    )
