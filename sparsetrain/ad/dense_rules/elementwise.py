# SPDX-License-Identifier: Apache-2.0
"""Activations and other functions of one or two elements.

Where possible, a rule tests the output instead of the argument: then only the forward pass reads
the argument, and the matrix product, its bias and the activation can be one kernel. If one of two
arguments is broadcast, its cotangent is summed.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from tvm import relax
from tvm.relax import op

from sparsetrain.ad.cotangent import emit
from sparsetrain.ad.dense_rules.accessors import constant, fitted, number
from sparsetrain.ad.vjp_rules import VJPRule


def _relu(output: relax.Var, call: Any, cotangent: relax.Expr, builder: Any) -> list:
    """Backward: ``where(y <= 0, 0, cotangent)``.

    The rule tests the output, so that matmul, bias and ReLU can be one kernel. As in PyTorch, the
    result is 0 where y is 0, and the cotangent where y is NaN.
    """
    zero = constant(0, output)
    return [op.where(op.less_equal(output, zero), zero, cotangent)]


def _leaky_relu(output: relax.Var, call: Any, cotangent: relax.Expr, builder: Any) -> list:
    """Forward: ``x`` above 0, ``alpha x`` elsewhere. Backward: the cotangent, scaled likewise."""
    alpha = float(call.attrs["alpha"])
    sign = output if alpha > 0 else call.args[0]  # then both have the same sign
    small = op.multiply(constant(alpha, output), cotangent)
    return [op.where(op.greater(sign, constant(0, output)), cotangent, small)]


def _prelu(output: relax.Var, call: Any, cotangent: relax.Expr, builder: Any) -> list:
    """Forward: ``x`` above 0, ``alpha x`` elsewhere, `alpha` a vector along `axis`.

    Backward: ``where(x > 0, 1, alpha) cotangent``; for `alpha` the sum of ``x cotangent`` where
    ``x <= 0`` (He et al. 2015, https://arxiv.org/abs/1502.01852).
    """
    x, alpha = call.args
    rank = len(x.ty.shape)
    axis = int(call.attrs["axis"]) % rank
    shape = [alpha.ty.shape[0] if a == axis else 1 for a in range(rank)]
    zero = constant(0, x)
    positive = emit(op.greater(x, zero))
    slope = op.multiply(op.reshape(alpha, shape), cotangent)
    of_alpha = op.where(positive, zero, op.multiply(x, cotangent))
    others = [a for a in range(rank) if a != axis]
    return [
        op.where(positive, cotangent, slope),
        op.sum(of_alpha, others) if others else of_alpha,
    ]


def _square(output: relax.Var, call: Any, cotangent: relax.Expr, builder: Any) -> list:
    """Backward: ``2 x cotangent``."""
    return [op.multiply(constant(2, output), op.multiply(call.args[0], cotangent))]


def _rsqrt(output: relax.Var, call: Any, cotangent: relax.Expr, builder: Any) -> list:
    """Backward: ``-y**3 / 2 cotangent`` with ``y = x**(-1/2)``."""
    cube = op.multiply(output, op.multiply(output, output))
    return [op.multiply(constant(-0.5, output), op.multiply(cube, cotangent))]


def _erf(output: relax.Var, call: Any, cotangent: relax.Expr, builder: Any) -> list:
    """Backward: ``2 / sqrt(pi) exp(-x**2) cotangent``."""
    x = call.args[0]
    slope = op.exp(op.negative(op.multiply(x, x)))
    return [op.multiply(constant(2 / math.sqrt(math.pi), x), op.multiply(slope, cotangent))]


def _clip(output: relax.Var, call: Any, cotangent: relax.Expr, builder: Any) -> list:
    """Backward: the cotangent where ``low <= x <= high``."""
    x, low, high = call.args
    inside = op.logical_and(
        op.greater_equal(x, constant(float(number(low)), x)),
        op.less_equal(x, constant(float(number(high)), x)),
    )
    return [op.where(inside, cotangent, constant(0, x)), None, None]


def _softplus(output: relax.Var, call: Any, cotangent: relax.Expr, builder: Any) -> list:
    """Backward: ``sigmoid(beta x) cotangent``; the cotangent itself above the threshold."""
    beta = constant(float(call.attrs["beta"]), output)
    scaled = op.multiply(beta, call.args[0])
    beyond = op.greater(scaled, constant(float(call.attrs["threshold"]), output))
    return [op.where(beyond, cotangent, op.multiply(op.sigmoid(scaled), cotangent))]


def _gelu(output: relax.Var, call: Any, cotangent: relax.Expr, builder: Any) -> list:
    """Forward: ``x Phi(x)``. Backward: ``(Phi(x) + x phi(x)) cotangent``."""
    x = call.args[0]
    phi_sum = op.multiply(
        constant(0.5, x),
        op.add(constant(1, x), op.erf(op.multiply(x, constant(math.sqrt(0.5), x)))),
    )
    density = op.multiply(
        constant(1 / math.sqrt(2 * math.pi), x),
        op.exp(op.multiply(constant(-0.5, x), op.multiply(x, x))),
    )
    return [op.multiply(op.add(phi_sum, op.multiply(x, density)), cotangent)]


def _gelu_tanh(output: relax.Var, call: Any, cotangent: relax.Expr, builder: Any) -> list:
    """Forward: ``x (1 + tanh(u)) / 2``, ``u = sqrt(2 / pi) (x + 0.044715 x**3)``.

    Backward: ``((1 + t) / 2 + x (1 - t**2) u' / 2) cotangent`` with ``t = tanh(u)``
    (Hendrycks and Gimpel 2016, https://arxiv.org/abs/1606.08415).
    """
    x, scale, cubic = call.args[0], math.sqrt(2 / math.pi), 0.044715
    half, one = constant(0.5, x), constant(1, x)
    squared = emit(op.multiply(x, x))
    inner = op.multiply(x, op.add(one, op.multiply(constant(cubic, x), squared)))
    t = emit(op.tanh(op.multiply(constant(scale, x), inner)))
    inner_slope = op.add(constant(scale, x), op.multiply(constant(3 * scale * cubic, x), squared))
    curved = op.multiply(op.multiply(x, op.subtract(one, op.multiply(t, t))), inner_slope)
    slope = op.multiply(half, op.add(op.add(one, t), curved))
    return [op.multiply(slope, cotangent)]


def _flat(output: relax.Var, call: Any, cotangent: relax.Expr, builder: Any) -> list:
    """Forward: a step function. Backward: 0, as in PyTorch."""
    return [op.zeros_like(cotangent)]


def _slope(slope: Callable[[relax.Expr, relax.Var], relax.Expr]) -> VJPRule:
    """Return the rule of ``y = f(x)`` with the derivative `slope`: ``slope(x, y) cotangent``."""

    def rule(output: relax.Var, call: Any, cotangent: relax.Expr, builder: Any) -> list:
        return [op.multiply(slope(call.args[0], output), cotangent)]

    return rule


def _where(output: Any, call: Any, cotangent: Any, builder: Any) -> list:
    """Backward: the cotangent to the selected side, 0 to the other."""
    condition, left, right = call.args
    zero = constant(0, output)
    parts = op.where(condition, cotangent, zero), op.where(condition, zero, cotangent)
    return [None, *(fitted(p, output, x) for p, x in zip(parts, (left, right), strict=True))]


def _power(output: Any, call: Any, cotangent: Any, builder: Any) -> list:
    """Backward: ``y x**(y - 1) cotangent`` and ``z log(x) cotangent`` for ``z = x**y``.

    As in PyTorch, the cotangent of x is 0 where y is 0, and the cotangent of y is 0 where x is 0;
    these formulas might give NaN there.
    """
    x, y = call.args
    zero, one = constant(0, output), constant(1, output)
    slope = op.multiply(y, op.power(x, op.subtract(y, one)))
    base = op.where(op.equal(y, zero), zero, op.multiply(cotangent, slope))
    growth = op.multiply(output, op.log(op.where(op.equal(x, zero), one, x)))
    return [fitted(base, output, x), fitted(op.multiply(cotangent, growth), output, y)]


def _log_add_exp(output: Any, call: Any, cotangent: Any, builder: Any) -> list:
    """Forward: ``log(exp(x) + exp(y))``. Backward: ``sigmoid(x - y)`` and ``sigmoid(y - x)``."""
    x, y = call.args
    return [
        fitted(op.multiply(op.sigmoid(op.subtract(a, b)), cotangent), output, a)
        for a, b in ((x, y), (y, x))
    ]


RULES = {
    "relax.abs": _slope(lambda x, y: op.sign(x)),  # 0 at 0, as in PyTorch
    "relax.sign": _flat,
    "relax.floor": _flat,
    "relax.ceil": _flat,
    "relax.round": _flat,
    "relax.trunc": _flat,
    "relax.nn.relu": _relu,
    "relax.nn.leakyrelu": _leaky_relu,
    "relax.nn.prelu": _prelu,
    "relax.square": _square,
    "relax.rsqrt": _rsqrt,
    "relax.erf": _erf,
    "relax.clip": _clip,
    "relax.nn.softplus": _softplus,
    "relax.nn.gelu": _gelu,
    "relax.nn.gelu_tanh": _gelu_tanh,
    "relax.where": _where,
    "relax.power": _power,
    "relax.log_add_exp": _log_add_exp,
}
