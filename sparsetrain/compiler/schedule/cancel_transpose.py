# SPDX-License-Identifier: Apache-2.0
"""Pass that cancels transposes, and turns the transpose of a product into another product.

A linear layer is `matmul(x, permute_dims(w))`. Its reverse pass contains
`permute_dims(permute_dims(w))`, which is the weight, and computes the weight's gradient as
`permute_dims(matmul(x', g))`, which is `matmul(g', x)`. Without this pass both copy a weight matrix
for each layer and step.

Invariant: only 2-D tensors are touched, values are unchanged. A later pass removes dead code.
"""

import tvm
from tvm import relax
from tvm.relax.expr_functor import PyExprMutator, mutator

from sparsetrain.compiler.schedule.definitions import Definitions
from sparsetrain.compiler.schedule.fold_rounding import is_half_matmul
from sparsetrain.compiler.schedule.fold_transpose import is_plain_matmul, transposed_source
from sparsetrain.kernels.relax_op import rewrite_functions


@tvm.transform.module_pass(opt_level=0, name="CancelTranspose")
class CancelTranspose:
    """Rewrite transposes of transposes and of products; run before `FoldTransposeIntoMatmul`."""

    def transform_module(
        self, mod: tvm.IRModule, _context: tvm.transform.PassContext
    ) -> tvm.IRModule:
        """Rewrite every Relax function of `mod`."""
        canceller = _Canceller(mod)
        return rewrite_functions(mod, canceller, canceller.cancel)


@mutator
class _Canceller(PyExprMutator):
    def cancel(self, function: relax.Function) -> relax.Function:
        self._definitions = Definitions(function)
        return self.visit_expr(function)

    def visit_call_(self, call: relax.Call) -> relax.Expr:
        source = transposed_source(call)
        if source is None:
            return super().visit_call_(call)
        inner = self._definitions.of(source)
        original = transposed_source(inner)
        if original is not None:
            return self.visit_expr(original)
        if inner is not None and _is_product(inner) and self._definitions.is_read_once(source):
            left, right = (self._transposed(operand) for operand in inner.args)
            return self.builder_.normalize(
                relax.op.matmul(right, left, out_dtype=str(inner.ty.dtype))
            )
        return super().visit_call_(call)

    def _transposed(self, operand: relax.Expr) -> relax.Expr:
        source = transposed_source(self._definitions.of(operand))
        if source is not None:
            return self.visit_expr(source)
        return self.builder_.emit(relax.op.permute_dims(self.visit_expr(operand)))


def _is_product(call: relax.Call) -> bool:
    return is_plain_matmul(call) or is_half_matmul(call)
