# SPDX-License-Identifier: Apache-2.0
"""Pass that gives extents one spelling: a reshape to `3 * B` becomes one to `B * 3`.

Operators simplify the extents they infer, a reshape keeps its arguments, and TVM 0.27 compares
extents literally when it fuses kernels.
"""

from tvm import relax
from tvm.sym import Analyzer

from sparsetrain.kernels.rewrite import Rewriter, function_pass


@function_pass
class SimplifyShapes(Rewriter):
    """Simplify the shapes that operators are given; types of results follow."""

    def visit_shape_expr_(self, shape: relax.ShapeExpr) -> relax.Expr:
        """Simplify each extent."""
        return relax.ShapeExpr([Analyzer().simplify(extent) for extent in shape.values])
