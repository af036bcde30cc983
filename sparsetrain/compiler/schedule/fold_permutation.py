# SPDX-License-Identifier: Apache-2.0
"""Pass that folds permutations of axes into batched products, which then read tensors in place.

Attention permutes (B, length, heads, D) to (B, heads, length, D), multiplies, and permutes the
result back; a gradient transposes every matrix of a batch. As separate operators, permutations are
copies that take as long as the products. The pass permutes the index expressions of the product
instead.

Invariant: values are unchanged. An operand is read in place if its last axis in memory is the row
or column axis of its matrices, and a result is written in place if its columns stay last, as the
schedule of a product requires. `transposes` handles products of two matrices.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from tvm import relax, te, tirx
from tvm_ffi import structural_equal

from sparsetrain.compiler.schedule.transposes import is_outer
from sparsetrain.kernels.rewrite import Rewriter, function_pass, is_call


class _View(NamedTuple):
    """A permuted tensor: its axis n is axis `axes[n]` of `source`."""

    source: relax.Expr
    axes: tuple[int, ...]

    @property
    def is_permuted(self) -> bool:
        return list(self.axes) != sorted(self.axes)


@function_pass
class FoldPermutationIntoMatmul(Rewriter):
    """Replace batched products, together with the permutations before and after them."""

    def visit_call_(self, call: relax.Call) -> relax.Expr:
        """Replace a batched product, or a permutation of its result."""
        result = self._result(call)
        if result is None:
            return super().visit_call_(call)
        product = result.source
        views = [self._operand(operand) for operand in product.args]
        if not is_outer(product) and not any(view.is_permuted for view in (*views, result)):
            return super().visit_call_(call)
        sources = [self.visit_expr(view.source) for view in views]
        axes = [view.axes for view in (*views, result)]
        compute = _outer_product if is_outer(product) else _product
        return self.builder_.call_te(compute, *sources, axes, primfunc_name_hint="matmul")

    def _result(self, call: relax.Call) -> _View | None:
        """Return the product that `call` computes as a view, or None if it computes none."""
        if is_batched_matmul(call):
            return _itself(call)
        if not is_call(call, "relax.permute_dims"):
            return None
        view = self._unpermuted(call, self.definitions.is_read_once)
        product = self.definitions.of(view.source)
        is_last = view.axes[-1] == len(view.axes) - 1
        return _View(product, view.axes) if is_batched_matmul(product) and is_last else None

    def _operand(self, operand: relax.Expr) -> _View:
        """Return the operand as a view of its source if it can be read in place, else itself."""
        view = self._unpermuted(operand, lambda var: True)
        rank = len(view.axes)
        last = view.axes.index(rank - 1)
        return view if last >= rank - 2 else _itself(operand)

    def _unpermuted(self, value: relax.Expr, may_follow: Callable[[relax.Expr], bool]) -> _View:
        """Return `value` as a view, looking through permutations while `may_follow` allows it."""
        view = _itself(value)
        while True:
            source = self.definitions.of(view.source)
            if not is_call(source, "relax.permute_dims"):
                return view
            axes = _axes_of(source)
            if not may_follow(source.args[0]):
                return view
            view = _View(source.args[0], tuple(axes[axis] for axis in view.axes))


def _itself(value: relax.Expr) -> _View:
    return _View(value, tuple(range(value.ty.ndim)))


def _axes_of(call: relax.Call) -> list[int]:
    rank, axes = call.ty.ndim, call.attrs.axes
    return list(range(rank))[::-1] if axes is None else [int(axis) % rank for axis in axes]


def is_batched_matmul(value: relax.Expr | None) -> bool:
    """Whether a call multiplies two batches of matrices of equal shape and dtype."""
    if not is_call(value, "relax.matmul"):
        return False
    operands = [operand.ty for operand in value.args]
    if not all(isinstance(t, relax.TensorType) and t.shape is not None for t in operands):
        return False
    left, right = (list(t.shape) for t in operands)
    dtypes = {str(t.dtype) for t in [*operands, value.ty]}
    is_batch = len(left) == len(right) > 2
    return is_batch and len(dtypes) == 1 and structural_equal(left[:-2], right[:-2])


def _product(a: te.Tensor, b: te.Tensor, axes: Sequence[Sequence[int]]) -> te.Tensor:
    """Compute the product of two views; `axes` permutes the left view, the right and the result."""
    k = te.reduce_axis((0, a.shape[axes[0][-1]]), name="k")
    shape, term = _terms(a, b, axes)
    return te.compute(shape, lambda *index: te.sum(term(index, k), axis=k), name="matmul")


def _outer_product(a: te.Tensor, b: te.Tensor, axes: Sequence[Sequence[int]]) -> te.Tensor:
    """Compute a product with one step of k as an elementwise kernel, which can be fused."""
    shape, term = _terms(a, b, axes)
    return te.compute(shape, lambda *index: term(index, tirx.const(0, "int64")), name="outer")


def _terms(
    a: te.Tensor, b: te.Tensor, axes: Sequence[Sequence[int]]
) -> tuple[list[Any], Callable[[Sequence[Any], Any], Any]]:
    """Return a product's shape, and a function that returns term k of the sum at an index."""
    of_left, of_right, of_result = axes
    *batch, rows, _ = (a.shape[axis] for axis in of_left)
    shape = [*batch, rows, b.shape[of_right[-1]]]

    def term(index: Sequence[Any], k: Any) -> Any:
        *at, i, j = _in_order(index, of_result)
        return a(*_in_order([*at, i, k], of_left)) * b(*_in_order([*at, k, j], of_right))

    return [shape[axis] for axis in of_result], term


def _in_order(index: Sequence[Any], axes: Sequence[int]) -> list[Any]:
    """Return the list with ``out[axes[n]] = index[n]``."""
    place = {axis: one for axis, one in zip(axes, index, strict=True)}
    return [place[axis] for axis in range(len(place))]
