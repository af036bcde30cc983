# SPDX-License-Identifier: Apache-2.0
"""Pass that merges products summed over rows with column sums of their operands.

If y is the cotangent of a layer's output, the gradients of its weight and bias are ``y.T @ x`` and
the column sums of y. Both read all of y, and the product's kernel has its rows in registers
(`kernel.py`), so it can sum them too. This saves one kernel and one read of y per layer. A sum is
merged if both operands of the product are defined before it.

Invariant: sums run over chunks of rows in order, for any number of threads.
"""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

import tvm_ffi
from tvm import relax, tirx
from tvm.target import Target

from sparsetrain.compiler.schedule.row_product.kernel import row_product
from sparsetrain.compiler.schedule.row_product.tiling import Shape, shape_of
from sparsetrain.compiler.schedule.transposes import is_plain_matmul, transposed_source
from sparsetrain.kernels.rewrite import Definitions, Rewriter, function_pass, is_call

_DTYPES = ("float32", "float64")
# A product over fewer rows, if their number is static, is left to the schedule rule for products,
# which can fuse the operators after it.
_FEWEST_SUMMED = 256


class _Plan(NamedTuple):
    """How to compute a product; with `flipped`, the kernel computes the transpose and flips it."""

    shape: Shape
    dtype: str
    flipped: bool


class _Operand(NamedTuple):
    """A matrix (K, n), and the variable bound to its column sums, if there is one."""

    matrix: relax.Var
    sums: relax.Var | None


class _Product(NamedTuple):
    """A product, its operands in the kernel's order, and the variable bound to its result."""

    plan: _Plan
    operands: tuple[_Operand, _Operand]
    result: relax.Var

    @property
    def written(self) -> list[relax.Var]:
        """The kernel's results, in order."""
        return [*(o.sums for o in self.operands if o.sums is not None), self.result]


@function_pass
class TakeRowProducts(Rewriter):
    """Replace products of a transposed matrix, together with column sums of their operands."""

    def rewrite(self, function: relax.Function) -> relax.Function:
        """Find the products, and the sums that their kernels can compute too, and replace them."""
        self._values: dict[relax.Var, relax.Expr] = {}
        products = _Finder(function, Target.current()).products()
        self._products = {var: product for product in products for var in product.written}
        return super().rewrite(function)

    def visit_var_binding_(self, binding: relax.VarBinding) -> None:
        """Bind a result of a kernel; if it is the first of the results, call the kernel."""
        product = self._products.get(binding.var)
        if product is None:
            super().visit_var_binding_(binding)
            return
        if binding.var not in self._values:
            self._call(product)
        is_inner = isinstance(binding.var, relax.DataflowVar)
        emit = self.builder_.emit if is_inner else self.builder_.emit_output
        self.set_var_remap(binding.var, emit(self._values[binding.var]))

    def _call(self, product: _Product) -> None:
        """Call the kernel of a product, and record the value of each result."""
        kernel = _kernel(product.plan, *(o.sums is not None for o in product.operands))
        results = self.builder_.emit(
            relax.call_tir(
                self.builder_.add_func(kernel, "matmul_tn"),
                [self.visit_expr(operand.matrix) for operand in product.operands],
                [var.ty for var in product.written],
            )
        )
        one = len(product.written) == 1
        for n, var in enumerate(product.written):
            self._values[var] = results if one else relax.TupleGetItem(results, n)


@cache
def _kernel(plan: _Plan, *sums: bool) -> tirx.PrimFunc:
    return row_product(plan.shape, plan.dtype, flipped=plan.flipped, sums=(sums[0], sums[1]))


class _Finder:
    """Finder of a function's products, and of the sums that their kernels can compute too."""

    def __init__(self, function: relax.Function, target: Target) -> None:
        self._target = target
        self._definitions = Definitions(function)
        self._blocks = function.body.blocks
        bound = [binding.var for block in self._blocks for binding in block.bindings]
        self._order = {var: n for n, var in enumerate(bound)}

    def products(self) -> list[_Product]:
        """Return the products in order; each sum is merged into the first product that fits."""
        found = []
        for block in self._blocks:
            sums: dict[relax.Var, relax.Var] = {}
            for binding in block.bindings:
                matrix = _summed(binding)
                if matrix is not None:
                    sums.setdefault(matrix, binding.var)
            for binding in block.bindings:
                matrices = self._matrices(binding)
                plan = None if matrices is None else _plan(*matrices, self._target)
                if matrices is not None and plan is not None:
                    found.append(_Product(plan, self._operands(plan, matrices, sums), binding.var))
        return found

    def _matrices(self, binding: relax.Binding) -> tuple[relax.Var, relax.Var] | None:
        """Return the matrices l and r if a binding is the product ``l.T @ r``, or None."""
        if not is_plain_matmul(binding.value):
            return None
        left, right = binding.value.args
        left = transposed_source(self._definitions.of(left))
        if transposed_source(self._definitions.of(right)) is not None:
            return None
        are_named = isinstance(left, relax.Var) and isinstance(right, relax.Var)
        return (left, right) if are_named else None

    def _operands(
        self,
        plan: _Plan,
        matrices: tuple[relax.Var, relax.Var],
        sums: dict[relax.Var, relax.Var],
    ) -> tuple[_Operand, _Operand]:
        """Return the kernel's operands, with sums that are bound after both matrices."""
        known = max(self._order.get(matrix, -1) for matrix in matrices)
        first, second = (
            _Operand(matrix, sums.pop(matrix))
            if matrix in sums and self._order[sums[matrix]] > known
            else _Operand(matrix, None)
            for matrix in matrices
        )
        return (second, first) if plan.flipped else (first, second)


def _summed(binding: relax.Binding) -> relax.Var | None:
    """Return the matrix if a binding sums its columns, or None."""
    value = binding.value
    is_sum = is_call(value, "relax.sum")
    if not is_sum and not is_call(value, "relax.collapse_sum_to"):
        return None
    matrix = value.args[0]
    if matrix.ty.ndim != 2 or value.ty.ndim != 1 or not isinstance(matrix, relax.Var):
        return None
    # The cotangent of a broadcast scalar, such as a bias (1,), is the sum of all elements instead.
    if not tvm_ffi.structural_equal(value.ty.shape[0], matrix.ty.shape[1]):
        return None
    return matrix if not is_sum or [int(axis) for axis in value.attrs.axis] == [0] else None


def _plan(left: relax.Var, right: relax.Var, target: Target) -> _Plan | None:
    """Return how to compute ``left.T @ right``, or None to leave it to the schedule rules."""
    dtype, extents = str(left.ty.dtype), (left.ty.shape[1], right.ty.shape[1])
    if dtype not in _DTYPES or not all(isinstance(n, tirx.IntImm) for n in extents):
        return None
    summed = left.ty.shape[0]
    if isinstance(summed, tirx.IntImm) and int(summed) < _FEWEST_SUMMED:
        return None
    rows, columns = map(int, extents)
    shape, flipped = shape_of(rows, columns, dtype, target), shape_of(columns, rows, dtype, target)
    # Vectors run along the longer side if the shorter side is less than two vectors.
    is_narrow = shape is None or (shape.vectors == 1 and rows > columns)
    if is_narrow and flipped is not None:
        return _Plan(flipped, dtype, True)
    return None if shape is None else _Plan(shape, dtype, False)
