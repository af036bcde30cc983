# SPDX-License-Identifier: Apache-2.0
"""Pass that folds casts and transposes into half-precision products.

`matmul(astype(x, bfloat16), permute_dims(astype(w, bfloat16)), out_dtype=float32)` then reads x and
w in place. The kernel rounds such an operand while packing it and never stores a bfloat16 copy. An
operand that an earlier kernel stored as bfloat16 is read without conversion. `half_products`
defines the loops of the product.
"""

import tvm
from tvm import relax

from sparsetrain.backend import current
from sparsetrain.compiler.schedule.half_products import HALVES, half_product
from sparsetrain.compiler.schedule.transposes import (
    is_half_matmul,
    transposed_source,
    whole_product,
)
from sparsetrain.kernels.rewrite import Rewriter, function_pass, is_call

_FUSES_WHAT_FOLLOWS = 4  # OpPatternKind.kOutEWiseFusable, which TVM's Python lacks
_DROPOUT = "relax.sparsetrain.dropout"  # has no hand-written kernel, so it fuses after a product


@function_pass
class FoldIntoHalfMatmul(Rewriter):
    """Replace half-precision products of matrices by kernels that also round and transpose."""

    def visit_call_(self, call: relax.Call) -> relax.Expr:
        """Multiply the sources of rounded and transposed operands instead."""
        if not is_half_matmul(call):
            return super().visit_call_(call)
        (left, flip_left), (right, flip_right) = map(self._source, call.args)
        a, b, half = self.visit_expr(left), self.visit_expr(right), str(call.args[0].ty.dtype)
        if flip_left and not flip_right:
            in_pieces = current().kernel("long product", whole_product)(self.builder_, a, b, half)
            if in_pieces is not None:
                return in_pieces
        return self.builder_.call_te(
            half_product,
            a,
            b,
            flip_left,
            flip_right,
            half,
            primfunc_name_hint=f"half_matmul_{'nt'[flip_left]}{'nt'[flip_right]}",
            primfunc_attrs={"op_pattern": _FUSES_WHAT_FOLLOWS},
        )

    def _source(self, operand: relax.Expr) -> tuple[relax.Expr, bool]:
        """Return the source of an operand, and whether the operand is its transpose."""
        transposed = False
        while True:
            value = self.definitions.of(operand)
            before = transposed_source(value)
            if isinstance(value, relax.Var) and value is not operand:  # an alias
                operand = value
            elif before is not None:
                operand, transposed = before, not transposed
            elif is_rounding(value) and not self._is_fused(value.args[0]):
                operand = value.args[0]
            else:
                return operand, transposed

    def _is_fused(self, source: relax.Expr) -> bool:
        """Whether the kernel that computes `source` can round it before it is stored."""
        value = self.definitions.of(source)
        return (
            isinstance(value, relax.Call)
            and isinstance(value.op, tvm.ir.Op)
            and not (value.op.name.startswith("relax.sparsetrain.") and value.op.name != _DROPOUT)
            and transposed_source(value) is None
            and self.definitions.readers(source) == 1
        )


def is_rounding(value: relax.Expr | None) -> bool:
    """Whether `value` is a cast from float32 to half precision."""
    return (
        is_call(value, "relax.astype")
        and str(value.ty.dtype) in HALVES
        and str(value.args[0].ty.dtype) == "float32"
    )
