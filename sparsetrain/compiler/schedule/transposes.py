# SPDX-License-Identifier: Apache-2.0
"""Passes that cancel transposes or fold them into matrix products, to avoid copies of matrices.

A linear layer is `matmul(x, permute_dims(w))`. Its reverse pass contains
`permute_dims(permute_dims(w))`, which equals w, and computes the weight's gradient as
`permute_dims(matmul(x', g))`, which equals `matmul(g', x)`. TVM's fusion never moves a transpose
into a product, so each transpose would cost a copy of the matrix in each step. These passes
transpose the index expressions instead.

Invariant: only products of 2-D tensors of one dtype change, and values stay the same. A later pass
removes dead code.
"""

from __future__ import annotations

from typing import Any

import tvm
from tvm import relax, te

from sparsetrain.backend import current
from sparsetrain.compiler.schedule.half_products import HALVES
from sparsetrain.kernels.rewrite import Rewriter, function_pass, is_call


@function_pass
class FoldTransposeIntoMatmul(Rewriter):
    """Replace products of transposed operands by NT, TN or TT kernels.

    An outer product (a sum over one element) becomes an elementwise kernel.
    """

    def visit_call_(self, call: relax.Call) -> relax.Expr:
        """Multiply the sources of transposed operands instead."""
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
            in_pieces = current().kernel("long product", whole_product)(self.builder_, a, b)
            if in_pieces is not None:
                return in_pieces
        name = f"matmul_{'NT'[left]}{'NT'[right]}"
        return self.builder_.call_te(
            _product, *operands, left, right, primfunc_name_hint=name.lower()
        )

    def _before_transpose(self, operand: relax.Expr) -> relax.Expr | None:
        """Return the matrix that `operand` transposes, or None."""
        return transposed_source(self.definitions.of(operand))


def whole_product(*_: Any) -> None:
    """Return None: on a CPU, the sum of a product is never split.

    Splitting helps only if there are more threads than tiles.
    """


def transposed_source(value: relax.Expr | None) -> relax.Expr | None:
    """Return the matrix that `value` transposes, or None if it is no transpose of a matrix."""
    if not is_call(value, "relax.permute_dims") or value.ty.ndim != 2:
        return None
    axes = value.attrs.axes
    return value.args[0] if axes is None or [int(a) for a in axes] == [1, 0] else None


def is_plain_matmul(call: relax.Call) -> bool:
    """Whether a call is a product of two matrices with one dtype for operands and result."""
    dtypes = _dtypes_of_matrices(call)
    return bool(dtypes) and dtypes == {str(call.ty.dtype)}


def is_half_matmul(call: relax.Call) -> bool:
    """Whether a call is a product of two half-precision matrices with a float32 result."""
    dtypes = _dtypes_of_matrices(call)
    return len(dtypes) == 1 and dtypes <= HALVES.keys() and str(call.ty.dtype) == "float32"


def _dtypes_of_matrices(call: relax.Call) -> set[str]:
    """Return the dtypes of the operands if a call multiplies two matrices, else an empty set."""
    types = [operand.ty for operand in call.args] if is_call(call, "relax.matmul") else []
    shaped = [t for t in types if isinstance(t, relax.TensorType) and t.shape is not None]
    return {str(t.dtype) for t in shaped} if [t.ndim for t in shaped] == [2, 2] else set()


def is_outer(call: relax.Call) -> bool:
    """Whether each sum of a product has a single term."""
    inner = call.args[0].ty.shape[-1]
    return isinstance(inner, tvm.tirx.IntImm) and int(inner) == 1


def _product(a: te.Tensor, b: te.Tensor, transpose_a: bool, transpose_b: bool) -> te.Tensor:
    inner = a.shape[0] if transpose_a else a.shape[1]
    shape = (a.shape[1] if transpose_a else a.shape[0], b.shape[0] if transpose_b else b.shape[1])

    def term(i: tvm.tirx.Var, j: tvm.tirx.Var, k: tvm.ir.Expr) -> tvm.ir.Expr:
        return (a[k, i] if transpose_a else a[i, k]) * (b[j, k] if transpose_b else b[k, j])

    # A sum of one term becomes an elementwise kernel, which can fuse with other kernels.
    if isinstance(inner, tvm.tirx.IntImm) and int(inner) == 1:
        return te.compute(shape, lambda i, j: term(i, j, tvm.tirx.const(0, "int64")), name="outer")
    k = te.reduce_axis((0, inner), name="k")

    return te.compute(shape, lambda i, j: te.sum(term(i, j, k), axis=k), name="matmul")


@function_pass
class CancelTranspose(Rewriter):
    """Remove transposes of transposes and of products; run before `FoldTransposeIntoMatmul`."""

    def visit_call_(self, call: relax.Call) -> relax.Expr:
        """Replace a transpose of a transpose, or of a product that has no other readers."""
        source = transposed_source(call)
        if source is None:
            return super().visit_call_(call)
        inner = self.definitions.of(source)
        original = transposed_source(inner)
        if original is not None:
            return self.visit_expr(original)
        if self._is_replaced(source):
            left, right = (self._transposed(operand) for operand in inner.args)
            return self.builder_.normalize(
                relax.op.matmul(right, left, out_dtype=str(inner.ty.dtype))
            )
        return super().visit_call_(call)

    def _is_replaced(self, source: relax.Expr) -> bool:
        """Whether `source` is a product read only by its transpose, which is computed instead."""
        inner = self.definitions.of(source)
        product = inner is not None and _is_product(inner)
        return product and self.definitions.is_read_once(source)

    def _transposed(self, operand: relax.Expr) -> relax.Expr:
        source = transposed_source(self.definitions.of(operand))
        if source is not None and not self._is_replaced(source):
            return self.visit_expr(source)
        return self.builder_.emit(relax.op.permute_dims(self.visit_expr(operand)))


def _is_product(call: relax.Call) -> bool:
    return is_plain_matmul(call) or is_half_matmul(call)
