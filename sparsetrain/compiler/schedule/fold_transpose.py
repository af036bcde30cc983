# SPDX-License-Identifier: Apache-2.0
"""Pass that folds transposes into matrix products, so that none is materialized.

Reverse-mode autodiff writes `matmul(permute_dims(x), g)` and a linear layer `matmul(x,
permute_dims(w))`. Operator fusion never moves a transpose into a product, so each would cost one
copy of the matrix per step. The pass transposes the index expressions instead.

Invariant: only 2-D products of one dtype are rewritten, values are unchanged. A later pass removes
dead code.
"""

import tvm
from tvm import relax, te
from tvm.relax.expr_functor import PyExprMutator, mutator

from sparsetrain.compiler.schedule.cuda.long_product import long_product
from sparsetrain.compiler.schedule.definitions import Definitions
from sparsetrain.kernels.relax_op import rewrite_functions


@tvm.transform.module_pass(opt_level=0, name="FoldTransposeIntoMatmul")
class FoldTransposeIntoMatmul:
    """Replace products of transposed operands by the form NT, TN or TT, outer ones by no sum."""

    def transform_module(
        self, mod: tvm.IRModule, _context: tvm.transform.PassContext
    ) -> tvm.IRModule:
        """Rewrite every Relax function of `mod`."""
        folder = _Folder(mod)
        return rewrite_functions(mod, folder, folder.fold)


@mutator
class _Folder(PyExprMutator):
    def fold(self, function: relax.Function) -> relax.Function:
        self._definitions = Definitions(function)
        return self.visit_expr(function)

    def visit_call_(self, call: relax.Call) -> relax.Expr:
        if not is_plain_matmul(call):
            return super().visit_call_(call)
        sources = [self._before_transpose(operand) for operand in call.args]
        left, right = (source is not None for source in sources)
        if not (left or right or is_outer(call)):
            return super().visit_call_(call)
        operands = [
            self.visit_expr(operand if source is None else source)
            for source, operand in zip(sources, call.args, strict=True)
        ]
        if left and not right:
            a, b = operands
            in_pieces = long_product(self.builder_, a, b)
            if in_pieces is not None:
                return in_pieces
        name = f"matmul_{'NT'[left]}{'NT'[right]}"
        return self.builder_.call_te(
            _product, *operands, left, right, primfunc_name_hint=name.lower()
        )

    def _before_transpose(self, operand: relax.Expr) -> relax.Expr | None:
        """The matrix of which `operand` is the transpose, or None."""
        return transposed_source(self._definitions.of(operand))


def transposed_source(value: relax.Expr | None) -> relax.Expr | None:
    """The matrix that the call `value` transposes, or None if it does something else."""
    if value is None or not is_call(value, "relax.permute_dims") or value.ty.ndim != 2:
        return None
    axes = value.attrs.axes
    return value.args[0] if axes is None or [int(a) for a in axes] == [1, 0] else None


def is_call(value: relax.Expr, operator: str) -> bool:
    """Whether `value` calls the named operator."""
    return (
        isinstance(value, relax.Call)
        and isinstance(value.op, tvm.ir.Op)
        and value.op.name == operator
    )


def is_plain_matmul(call: relax.Call) -> bool:
    """A product of two matrices of one dtype, which a transpose can be moved into."""
    if not is_call(call, "relax.matmul"):
        return False
    operands = [operand.ty for operand in call.args]
    return (
        all(isinstance(t, relax.TensorType) and t.ndim == 2 for t in operands)
        and all(t.shape is not None for t in operands)
        and len({str(t.dtype) for t in [*operands, call.ty]}) == 1
    )


def is_outer(call: relax.Call) -> bool:
    """Whether a product is summed over a single element."""
    inner = call.args[0].ty.shape[-1]
    return isinstance(inner, tvm.tirx.IntImm) and int(inner) == 1


def _product(a: te.Tensor, b: te.Tensor, transpose_a: bool, transpose_b: bool) -> te.Tensor:
    inner = a.shape[0] if transpose_a else a.shape[1]
    shape = (a.shape[1] if transpose_a else a.shape[0], b.shape[0] if transpose_b else b.shape[1])

    def term(i: tvm.tirx.Var, j: tvm.tirx.Var, k: tvm.ir.Expr) -> tvm.ir.Expr:
        return (a[k, i] if transpose_a else a[i, k]) * (b[j, k] if transpose_b else b[k, j])

    # Over one element there is nothing to sum: an elementwise kernel, which fuses like one.
    if isinstance(inner, tvm.tirx.IntImm) and int(inner) == 1:
        return te.compute(shape, lambda i, j: term(i, j, tvm.tirx.const(0, "int64")), name="outer")
    k = te.reduce_axis((0, inner), name="k")

    return te.compute(shape, lambda i, j: te.sum(term(i, j, k), axis=k), name="matmul")
