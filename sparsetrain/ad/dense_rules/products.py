# SPDX-License-Identifier: Apache-2.0
"""Products of many elements, and running ones. What is 0 is never divided by."""

from __future__ import annotations

from typing import Any

from tvm import relax
from tvm.relax import op

from sparsetrain.ad.cotangent import emit
from sparsetrain.ad.dense_rules.reading import constant
from sparsetrain.ad.dense_rules.reductions import axes_of, with_axes


def _prod(output: relax.Var, call: Any, cotangent: relax.Expr, builder: Any) -> list:
    """Backward: the product of the others, ``y / x``.

    Where x is the only 0 that is the product of what is not 0; beside another 0 it is 0.
    """
    x, axes = call.args[0], axes_of(call)
    product, cotangent = with_axes(call, output, cotangent)
    zero, one = constant(0, x), constant(1, x)
    is_zero = emit(op.equal(x, zero))
    nonzero = emit(op.where(is_zero, one, x))
    count = op.sum(emit(op.where(is_zero, one, zero)), axes, keepdims=True)
    alone = op.where(op.equal(count, one), op.prod(nonzero, axes, keepdims=True), zero)
    others = op.where(is_zero, alone, op.divide(product, nonzero))
    return [op.multiply(cotangent, others)]


def _cumprod(output: relax.Var, call: Any, cotangent: relax.Expr, builder: Any) -> list:
    """Forward: ``y[n] = x[0] ... x[n]``, without ``x[n]`` if `exclusive`.

    Backward: ``sum_n cotangent[n] y[n] / x[k]`` over ``n >= k`` before the first 0; for that 0
    the same sum of the products without it; behind it 0.
    """
    x, given, exclusive = call.args[0], call.attrs["axis"], call.attrs["exclusive"]
    axis, dtype = 0 if given is None else int(given), str(x.ty.dtype)
    flat = emit(op.reshape(x, [-1])) if given is None else x
    zero, one = constant(0, x), constant(1, x)
    is_zero = emit(op.equal(flat, zero))
    seen = emit(op.cumsum(emit(op.where(is_zero, one, zero)), axis, dtype))
    is_first = emit(op.logical_and(is_zero, op.equal(seen, one)))
    without = emit(op.cumprod(emit(op.where(is_first, one, flat)), axis, dtype, exclusive))

    def later(products: relax.Expr) -> relax.Expr:
        """For each element the sum over the products that it is in."""
        reverse = emit(op.flip(emit(op.multiply(cotangent, products)), axis))
        return emit(op.flip(emit(op.cumsum(reverse, axis, dtype, exclusive)), axis))

    before = op.divide(later(output), emit(op.where(is_zero, one, flat)))
    at_first = op.where(is_first, later(without), zero)
    return [op.reshape(emit(op.where(op.equal(seen, zero), before, at_first)), x.ty.shape)]


RULES = {
    "relax.prod": _prod,
    "relax.cumprod": _cumprod,
}
