# SPDX-License-Identifier: Apache-2.0
"""Pass that gives extents one spelling: a reshape to `3 * B` becomes one to `B * 3`.

Operators simplify the extents that they infer, a reshape keeps those that it is given, and TVM 0.27
compares extents by their spelling when it fuses kernels.
"""

import tvm
from tvm import relax
from tvm.relax.expr_functor import PyExprMutator, mutator
from tvm.sym import Analyzer

from sparsetrain.kernels.relax_op import rewrite_functions


@tvm.transform.module_pass(opt_level=0, name="SimplifyShapes")
class SimplifyShapes:
    """Simplify the shapes that operators are given; types of results follow."""

    def transform_module(
        self, mod: tvm.IRModule, _context: tvm.transform.PassContext
    ) -> tvm.IRModule:
        """Rewrite every Relax function that changes."""
        simplifier = _Simplifier(mod)
        return rewrite_functions(mod, simplifier, simplifier.visit_expr)


@mutator
class _Simplifier(PyExprMutator):
    def visit_shape_expr_(self, shape: relax.ShapeExpr) -> relax.Expr:
        return relax.ShapeExpr([Analyzer().simplify(extent) for extent in shape.values])
