# SPDX-License-Identifier: Apache-2.0
"""Pass that writes equal extents the same way: a reshape to `3 * B` becomes a reshape to `B * 3`.

Operators simplify the extents that they infer, but a reshape keeps its arguments as written, and
TVM 0.27 compares extents literally when it fuses kernels.
"""

from tvm import relax
from tvm.sym import Analyzer

from sparsetrain.kernels.rewrite import Rewriter, function_pass


@function_pass
class SimplifyShapes(Rewriter):
    """Simplify the shapes in operators' arguments; the types of their results change with them."""

    def visit_shape_expr_(self, shape: relax.ShapeExpr) -> relax.Expr:
        """Simplify each extent."""
        return relax.ShapeExpr([Analyzer().simplify(extent) for extent in shape.values])
