# SPDX-License-Identifier: Apache-2.0
"""Pass that lowers attention to matrix products and a softmax.

The gradient recomputes the attention weights from the same arguments as the forward pass, so in
functions with attention the pass also eliminates common subexpressions.
"""

import tvm
from tvm import relax
from tvm.relax.expr_functor import mutator

from sparsetrain.kernels.rewrite import Rewriter, is_call, rewrite_functions
from sparsetrain.ops.attention import attention, has_scale

_OPERATORS = ("relax.nn.attention", "relax.nn.attention_bias")


@tvm.transform.module_pass(opt_level=0, name="LowerAttention")
class LowerAttention:
    """Replace attention without a window and with a known scale by simpler operators."""

    def transform_module(
        self, mod: tvm.IRModule, _context: tvm.transform.PassContext
    ) -> tvm.IRModule:
        """Rewrite every Relax function of `mod`."""
        lowering = _Lowering(mod)
        lowered = rewrite_functions(mod, lowering)
        return relax.transform.EliminateCommonSubexpr()(lowered) if lowering.has_met else mod


@mutator
class _Lowering(Rewriter):
    has_met = False

    def visit_call_(self, call: relax.Call) -> relax.Expr:
        call = super().visit_call_(call)
        is_attention = any(is_call(call, name) for name in _OPERATORS)
        if not is_attention or call.attrs["window_size"] is not None:
            return call
        if not all(isinstance(tensor.ty.shape, relax.ShapeExpr) for tensor in call.args):
            return call
        if not has_scale(call):
            return call
        self.has_met = True
        return self.builder_.normalize(attention(call, self.builder_.emit))
