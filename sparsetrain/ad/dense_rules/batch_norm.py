# SPDX-License-Identifier: Apache-2.0
"""Batch norm with the batch's statistics, which are returned for running averages.

With mean and variance over the n rows of a column (Ioffe and Szegedy 2015,
https://arxiv.org/abs/1502.03167):

    h = (x - mean) / sqrt(variance + epsilon),   y = h gamma + beta
    dx = gamma / sqrt(variance + epsilon) (g - mean(g) - h mean(g h))   for a cotangent g

The reverse pass keeps x and the statistics and recomputes h. Roots and quotients are computed per
column, not per element.
"""

from __future__ import annotations

import operator
from functools import reduce
from typing import Any

from tvm import relax, te, tirx, topi
from tvm.relax import op

from sparsetrain.ad.cotangent import emit
from sparsetrain.kernels.relax_op import define_op

_ELEMENTWISE = {"op_pattern": 0}  # fuses with its neighbours


def _sums(like: te.Tensor, name: str, element: Any) -> te.Tensor:
    """Sum elements over all axes but the last."""
    return topi.sum(te.compute(like.shape, element, name), [*range(len(like.shape) - 1)])


def _means(like: te.Tensor, name: str, element: Any, result: str) -> te.Tensor:
    total = _sums(like, name, element)
    return te.compute(total.shape, lambda c: total[c] / _float(_count(like), like), result)


def _count(x: te.Tensor) -> Any:
    """Return the number of rows, n."""
    return reduce(operator.mul, list(x.shape)[:-1], tirx.const(1, "int64"))


def _float(count: Any, like: te.Tensor) -> Any:
    return tirx.Cast(like.dtype, count)


def _normal(i: Any, x: te.Tensor, mean: te.Tensor, inverse: te.Tensor) -> Any:
    return (x(*i) - mean[i[-1]]) * inverse[i[-1]]


def _type(call: Any) -> relax.Type:
    x, gamma = call.args[:2]
    return relax.TupleType([x.ty, gamma.ty, gamma.ty, gamma.ty])


def _kernel(builder: relax.BlockBuilder, call: Any) -> relax.Expr:
    x, gamma, beta = call.args
    epsilon = float(call.attrs["epsilon"])

    def mean(x: te.Tensor) -> te.Tensor:
        return _means(x, "values", lambda *i: x(*i), "mean")

    def variance(x: te.Tensor, mean: te.Tensor) -> te.Tensor:
        def square(*i: Any) -> Any:
            return (x(*i) - mean[i[-1]]) * (x(*i) - mean[i[-1]])

        return _means(x, "squares", square, "variance")

    def unbiased(variance: te.Tensor, x: te.Tensor) -> te.Tensor:
        least = tirx.max(_count(x) - 1, tirx.const(1, "int64"))
        factor = _float(_count(x), variance) / _float(least, variance)
        return te.compute(variance.shape, lambda c: variance[c] * factor, "unbiased")

    def inverse(variance: te.Tensor) -> te.Tensor:
        one, least = (tirx.const(number, variance.dtype) for number in (1, epsilon))
        return te.compute(variance.shape, lambda c: one / tirx.sqrt(variance[c] + least), "inverse")

    def normalize(*tensors: te.Tensor) -> te.Tensor:
        x, gamma, beta, *of_columns = tensors

        def element(*i: Any) -> Any:
            return _normal(i, x, *of_columns) * gamma[i[-1]] + beta[i[-1]]

        return te.compute(x.shape, element, "normalize")

    means = builder.emit_te(mean, x)
    variances = builder.emit_te(variance, x, means)
    inverses = builder.emit_te(inverse, variances)
    given = x, gamma, beta, means, inverses
    y = builder.emit_te(normalize, *given, primfunc_attrs=_ELEMENTWISE)
    return relax.Tuple([y, means, inverses, builder.emit_te(unbiased, variances, x)])


_batch_norm = define_op("batch_norm", ("x", "gamma", "beta"), _type, _kernel)


def batch_norm(
    x: relax.Expr, gamma: relax.Expr, beta: relax.Expr, *, epsilon: float = 1e-5
) -> tuple[relax.Expr, relax.Expr, relax.Expr]:
    """Normalize each column by its mean and variance in the batch, inside a dataflow block.

    Parameters
    ----------
    x : (B, ..., C) float
    gamma, beta : (C,) float
    epsilon : float
        Added to the variance.

    Returns
    -------
    y : (B, ..., C) float
    mean, variance : (C,) float
        Per column; the variance divides by n - 1, and is 0 for a single row. No gradient flows
        through these two.

    References
    ----------
    https://arxiv.org/abs/1502.03167
    """
    whole = emit(_batch_norm(x, gamma, beta, epsilon=epsilon))
    y, mean, _, corrected = (emit(relax.TupleGetItem(whole, n)) for n in range(4))
    return y, emit(op.grad.no_grad(mean)), emit(op.grad.no_grad(corrected))


def _sums_kernel(builder: relax.BlockBuilder, call: Any) -> relax.Expr:
    def of_beta(g: te.Tensor) -> te.Tensor:
        return _sums(g, "cotangents", lambda *i: g(*i))

    def of_gamma(g: te.Tensor, x: te.Tensor, *of_columns: te.Tensor) -> te.Tensor:
        return _sums(g, "slopes", lambda *i: g(*i) * _normal(i, x, *of_columns))

    return relax.Tuple(
        [builder.emit_te(of_beta, call.args[0]), builder.emit_te(of_gamma, *call.args)]
    )


def _input_kernel(builder: relax.BlockBuilder, call: Any) -> relax.Expr:
    def of_x(*tensors: te.Tensor) -> te.Tensor:
        g, x, gamma, mean, inverse, of_gamma, of_beta = tensors
        share = tirx.const(1, g.dtype) / _float(_count(g), g)

        def element(*i: Any) -> Any:
            c = i[-1]
            shared = of_beta[c] * share + _normal(i, x, mean, inverse) * (of_gamma[c] * share)
            return gamma[c] * inverse[c] * (g(*i) - shared)

        return te.compute(g.shape, element, "of_x")

    return builder.call_te(of_x, *call.args, primfunc_attrs=_ELEMENTWISE)


_cotangent_sums = define_op(
    "batch_norm_sums",
    ("cotangent", "x", "mean", "inverse"),
    lambda call: relax.TupleType([call.args[2].ty] * 2),
    _sums_kernel,
)
_of_x = define_op(
    "batch_norm_backward",
    ("cotangent", "x", "gamma", "mean", "inverse", "of_gamma", "of_beta"),
    lambda call: call.args[0].ty,
    _input_kernel,
)


def _backward(output: relax.Var, call: Any, cotangent: relax.Expr, builder: Any) -> list:
    """Return the cotangents of x, gamma and beta, given the cotangent of y."""
    x, gamma, _ = call.args
    of_y = emit(relax.TupleGetItem(cotangent, 0))
    mean, inverse = (emit(relax.TupleGetItem(output, n)) for n in (1, 2))
    sums = emit(_cotangent_sums(of_y, x, mean, inverse))
    of_beta, of_gamma = (emit(relax.TupleGetItem(sums, n)) for n in (0, 1))
    return [_of_x(of_y, x, gamma, mean, inverse, of_gamma, of_beta), of_gamma, of_beta]


RULES = {"relax.sparsetrain.batch_norm": _backward}
