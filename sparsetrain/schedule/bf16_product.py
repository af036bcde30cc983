# SPDX-License-Identifier: Apache-2.0
"""Products of bfloat16 matrices: casts and transposes of the operands become part of the kernel.

`matmul(astype(x, bfloat16), permute_dims(astype(w, bfloat16)), out_dtype=float32)` reads x and w
where they lie. An operand that is rounded here is never stored as bfloat16: the kernel rounds it
while it packs. One that is stored so already, because a kernel before wrote it, is read as it is.

Inside kernels a bfloat16 is a `uint16`, its bits: TVM 0.27 makes every intermediate of type
bfloat16 a float32.
"""

import tvm
from tvm import relax, te, tirx
from tvm.relax.expr_functor import PyExprMutator, mutator

from .fold_transpose import is_call, transposed_source

HALF = "bfloat16"
_FUSES_WHAT_FOLLOWS = 4  # OpPatternKind.kOutEWiseFusable, which Python does not name.


@tvm.transform.module_pass(opt_level=0, name="FoldIntoHalfMatmul")
class FoldIntoHalfMatmul:
    """Replace 2-D products of bfloat16 with float32 results by kernels that round and transpose."""

    def transform_module(
        self, mod: tvm.IRModule, _context: tvm.transform.PassContext
    ) -> tvm.IRModule:
        """Rewrite every Relax function of `mod`."""
        folder = _Folder(mod)
        for name, function in mod.functions_items():
            if isinstance(function, relax.Function):
                folder.builder_.update_func(name, folder.fold(function))
        return folder.builder_.get()


@mutator
class _Folder(PyExprMutator):
    def fold(self, function: relax.Function) -> relax.Function:
        self._definitions = relax.analysis.get_var2val(function)
        self._uses = relax.analysis.udchain(function.body.blocks[0])
        return self.visit_expr(function)

    def visit_call_(self, call: relax.Call) -> relax.Expr:
        if not is_half_matmul(call):
            return super().visit_call_(call)
        (left, flip_left), (right, flip_right) = map(self._source, call.args)
        return self.builder_.call_te(
            half_product,
            self.visit_expr(left),
            self.visit_expr(right),
            flip_left,
            flip_right,
            primfunc_name_hint=f"half_matmul_{'nt'[flip_left]}{'nt'[flip_right]}",
            primfunc_attrs={"op_pattern": _FUSES_WHAT_FOLLOWS},
        )

    def _source(self, operand: relax.Expr) -> tuple[relax.Expr, bool]:
        """What an operand is made of, and whether that is transposed on the way."""
        transposed = False
        while True:
            value = self._definitions.get(operand) if isinstance(operand, relax.Var) else operand
            before = transposed_source(value)
            if isinstance(value, relax.Var) and value is not operand:  # another name for it
                operand = value
            elif before is not None:
                operand, transposed = before, not transposed
            elif is_rounding(value) and not self._is_fused(value.args[0]):
                operand = value.args[0]
            else:
                return operand, transposed

    def _is_fused(self, source: relax.Expr) -> bool:
        """Whether a kernel computes `source` that can round it before it is ever stored."""
        value = self._definitions.get(source) if isinstance(source, relax.Var) else source
        return (
            isinstance(value, relax.Call)
            and isinstance(value.op, tvm.ir.Op)
            and not value.op.name.startswith("relax.sparsetrain.")
            and transposed_source(value) is None
            and len(self._uses.get(source, ())) == 1
        )


def is_rounding(value: relax.Expr | None) -> bool:
    """Whether `value` is a cast of float32 numbers to bfloat16."""
    return (
        value is not None
        and is_call(value, "relax.astype")
        and str(value.ty.dtype) == HALF
        and str(value.args[0].ty.dtype) == "float32"
    )


def is_half_matmul(call: relax.Call) -> bool:
    """A product of two bfloat16 matrices that is accumulated in float32."""
    if not is_call(call, "relax.matmul") or str(call.ty.dtype) != "float32":
        return False
    operands = [operand.ty for operand in call.args]
    return all(t.ndim == 2 and t.shape is not None and str(t.dtype) == HALF for t in operands)


def half_product(a: te.Tensor, b: te.Tensor, transpose_a: bool, transpose_b: bool) -> te.Tensor:
    """``a b`` with both rounded to bfloat16, either transposed first; accumulated in float32.

    Parameters
    ----------
    a, b : te.Tensor
        Matrices, float32 or bfloat16.
    transpose_a, transpose_b : bool
        Whether the factor is the transpose.
    """
    left, right = _bits(a, "half_left"), _bits(b, "half_right")
    k = te.reduce_axis((0, a.shape[0] if transpose_a else a.shape[1]), name="k")
    shape = (a.shape[1] if transpose_a else a.shape[0], b.shape[0] if transpose_b else b.shape[1])

    def term(i: tirx.Var, j: tirx.Var) -> tvm.ir.Expr:
        x = left[k, i] if transpose_a else left[i, k]
        y = right[j, k] if transpose_b else right[k, j]
        return te.sum(widen(x) * widen(y), axis=k)

    return te.compute(shape, term, name="half_matmul")


def _bits(x: te.Tensor, name: str) -> te.Tensor:
    bits = round_to_half if str(x.dtype) == "float32" else _bits_of_half
    return te.compute(x.shape, lambda *index: bits(x(*index)), name=name)


def _bits_of_half(x: tvm.ir.Expr) -> tvm.ir.Expr:
    return tirx.reinterpret("uint16", x)


def round_to_half(x: tvm.ir.Expr) -> tvm.ir.Expr:
    """The bits of the bfloat16 nearest to a float32 number, ties to even."""
    bits = tirx.reinterpret("uint32", x)
    odd = (bits >> _u32(16)) & _u32(1)
    rounded = (bits + odd + _u32(0x7FFF)) >> _u32(16)
    # Rounding would carry some NaNs over into zeros: they become the one quiet NaN.
    is_nan = (bits & _u32(0x7FFFFFFF)) > _u32(0x7F800000)
    return tirx.Select(is_nan, _u32(0x7FC0), rounded).astype("uint16")


def widen(bits: tvm.ir.Expr) -> tvm.ir.Expr:
    """The float32 number of a bfloat16's bits."""
    return tirx.reinterpret("float32", bits.astype("uint32") << _u32(16))


def _u32(value: int) -> tirx.IntImm:
    return tirx.const(value, "uint32")
