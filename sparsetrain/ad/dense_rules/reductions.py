# SPDX-License-Identifier: Apache-2.0
"""Reverse rules of means and variances over a symbolic extent, maxima, minima and running sums."""

from __future__ import annotations

from typing import Any

from tvm import relax, te, tirx
from tvm.relax import op

from sparsetrain.ad.cotangent import emit
from sparsetrain.ad.dense_rules.accessors import constant
from sparsetrain.kernels.relax_op import define_op


def axes_of(call: Any) -> list[int]:
    """Return the axes that a call reduces, sorted and non-negative; all axes if none is given."""
    rank, given = len(call.args[0].ty.shape), call.attrs["axis"]
    return sorted(range(rank) if given is None else (int(axis) % rank for axis in given))


def with_axes(call: Any, *reduced: relax.Expr) -> list[relax.Expr]:
    """Reshape tensors that have a call's result shape: insert the reduced axes with extent 1."""
    if int(call.attrs["keepdims"]):
        return list(reduced)
    return [emit(op.expand_dims(y, axes_of(call))) for y in reduced]


def _mean_kernel(builder: relax.BlockBuilder, call: Any) -> relax.Expr:
    axes = {int(axis) for axis in call.attrs["axes"]}
    keep = bool(call.attrs["keepdims"])

    def spread(cotangent: te.Tensor, x: te.Tensor) -> te.Tensor:
        count = tirx.const(1, "int64")
        for axis in axes:
            count = count * x.shape[axis]

        def element(*index: Any) -> Any:
            kept = [0 if a in axes else i for a, i in enumerate(index) if keep or a not in axes]
            return cotangent(*kept) / tirx.Cast(cotangent.dtype, count)

        return te.compute(x.shape, element, "mean_cotangent")

    return builder.call_te(spread, *call.args)


# Cotangent of a mean, and the mean's argument x -> the cotangent divided by the count, for each
# element of x.
mean_cotangent = define_op(
    "mean_cotangent", ("cotangent", "x"), lambda call: call.args[1].ty, _mean_kernel
)


def _mean(output: relax.Var, call: Any, cotangent: relax.Expr, builder: Any) -> list:
    """Backward: the cotangent divided by the number of elements, which may be symbolic."""
    keepdims = int(call.attrs["keepdims"])
    return [mean_cotangent(cotangent, call.args[0], axes=axes_of(call), keepdims=keepdims)]


def _extreme(output: relax.Var, call: Any, cotangent: relax.Expr, builder: Any) -> list:
    """Backward of max and min: the elements equal to the result share the cotangent equally."""
    x = call.args[0]
    extreme, cotangent = with_axes(call, output, cotangent)
    one, zero = constant(1, x), constant(0, x)
    chosen = emit(op.where(op.equal(x, extreme), one, zero))
    shared = op.divide(cotangent, op.sum(chosen, axes_of(call), keepdims=True))
    return [op.multiply(chosen, shared)]


def _variance(output: relax.Var, call: Any, cotangent: relax.Expr, builder: Any) -> list:
    """Forward: ``mean((x - mean(x))**2)``. Backward: ``2 (x - mean(x)) / n cotangent``."""
    x = call.args[0]
    (share,) = _mean(output, call, cotangent, builder)
    return [op.multiply(op.multiply(constant(2, x), _centred(call)), share)]


def _std(output: relax.Var, call: Any, cotangent: relax.Expr, builder: Any) -> list:
    """Backward: ``(x - mean(x)) / (n y) cotangent``; 0 where y is 0, as in PyTorch."""
    zero = constant(0, output)
    inverse = op.where(op.equal(output, zero), zero, op.divide(cotangent, output))
    (share,) = _mean(output, call, emit(inverse), builder)
    return [op.multiply(_centred(call), share)]


def _centred(call: Any) -> relax.Expr:
    x = call.args[0]
    return emit(op.subtract(x, op.mean(x, call.attrs["axis"], keepdims=True)))


def _cumsum(output: relax.Var, call: Any, cotangent: relax.Expr, builder: Any) -> list:
    """Backward: the running sum from the end, without each element's own part if `exclusive`."""
    x, axis = call.args[0], call.attrs["axis"]
    place = 0 if axis is None else int(axis)
    reverse = emit(op.flip(cotangent, place))
    sums = emit(op.cumsum(reverse, place, str(x.ty.dtype), call.attrs["exclusive"]))
    return [op.reshape(emit(op.flip(sums, place)), x.ty.shape)]


RULES = {
    "relax.cumsum": _cumsum,
    "relax.std": _std,
    "relax.variance": _variance,
    "relax.mean": _mean,
    "relax.max": _extreme,
    "relax.min": _extreme,
}
