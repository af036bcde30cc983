# SPDX-License-Identifier: Apache-2.0
"""Layer norm, RMS norm, and batch norm by moving averages."""

from __future__ import annotations

from typing import Any

from tvm import relax
from tvm.relax import op

from sparsetrain.ad.cotangent import emit
from sparsetrain.ad.dense_rules.accessors import constant
from sparsetrain.errors import ConfigError


def _inverse(variance: relax.Expr, call: Any) -> relax.Expr:
    epsilon = constant(float(call.attrs["epsilon"]), variance)
    return emit(op.divide(constant(1, variance), op.sqrt(op.add(variance, epsilon))))


def _layer_norm(output: relax.Var, call: Any, cotangent: relax.Expr, builder: Any) -> list:
    """Forward: ``y = h gamma + beta`` with ``h = (x - mean) / std`` over `axes`.

    Backward: ``dx = (g - mean(g) - h mean(g h)) / std`` with ``g = cotangent gamma`` (Ba et al.
    2016, https://arxiv.org/abs/1607.06450). `center` and `scale` are ignored, as in TVM's kernel.
    """
    x, gamma, beta = call.args
    axes = [int(axis) for axis in call.attrs["axes"]]
    centred = emit(op.subtract(x, emit(op.mean(x, axes, keepdims=True))))
    variance = emit(op.mean(op.multiply(centred, centred), axes, keepdims=True))
    inverse = _inverse(variance, call)
    normal = emit(op.multiply(centred, inverse))
    scaled = emit(op.multiply(cotangent, gamma))
    shared = op.add(
        op.mean(scaled, axes, keepdims=True),
        op.multiply(normal, op.mean(op.multiply(scaled, normal), axes, keepdims=True)),
    )
    return [
        op.multiply(inverse, op.subtract(scaled, shared)),
        op.collapse_sum_to(op.multiply(cotangent, normal), gamma.ty.shape),
        op.collapse_sum_to(cotangent, beta.ty.shape),
    ]


def _rms_norm(output: relax.Var, call: Any, cotangent: relax.Expr, builder: Any) -> list:
    """Forward: ``y = x r weight`` with ``r = (mean(x**2) + epsilon)**(-1/2)`` over `axes`.

    Backward: ``dx = r (g - x r**2 mean(g x))`` with ``g = cotangent weight``
    (Zhang and Sennrich 2019, https://arxiv.org/abs/1910.07467).
    """
    x, weight = call.args
    axes = [int(axis) for axis in call.attrs["axes"]]
    mean_square = emit(op.mean(op.multiply(x, x), axes, keepdims=True))
    inverse = _inverse(mean_square, call)
    normal = emit(op.multiply(x, inverse))
    scaled = emit(op.multiply(cotangent, weight))
    shared = op.mean(op.multiply(scaled, normal), axes, keepdims=True)
    return [
        op.multiply(inverse, op.subtract(scaled, op.multiply(normal, shared))),
        op.collapse_sum_to(op.multiply(cotangent, normal), weight.ty.shape),
    ]


def _along(vector: relax.Expr, axis: int, rank: int) -> relax.Expr:
    """Reshape a vector of one number per index of `axis` to broadcast along it."""
    return emit(op.reshape(vector, [-1 if a == axis else 1 for a in range(rank)]))


def _batch_norm(output: relax.Var, call: Any, cotangent: relax.Expr, builder: Any) -> list:
    """Forward, by moving averages along one axis: ``y = (x - mean) / std gamma + beta``."""
    if call.attrs["training"]:
        raise ConfigError(
            "relax.nn.batch_norm: no derivative with training=True; use models.BatchNorm"
        )
    x, gamma, _, mean, variance = call.args
    rank = len(x.ty.shape)
    axis = int(call.attrs["axis"]) % rank
    rest = [a for a in range(rank) if a != axis]
    scale, center = bool(call.attrs["scale"]), bool(call.attrs["center"])
    of_y, *of_moving = (emit(relax.TupleGetItem(cotangent, n)) for n in range(3))
    scaled = emit(op.multiply(of_y, _along(gamma, axis, rank))) if scale else of_y
    inverse = _inverse(variance, call)
    spread = _along(inverse, axis, rank)
    normal = emit(op.multiply(op.subtract(x, _along(mean, axis, rank)), spread))
    none = emit(op.zeros(gamma.ty.shape, str(gamma.ty.dtype)))
    slope = op.sum(emit(op.multiply(scaled, normal)), rest)
    of_variance = op.multiply(constant(0.5, x), op.multiply(slope, op.multiply(inverse, inverse)))
    return [
        op.multiply(scaled, spread),
        op.sum(emit(op.multiply(of_y, normal)), rest) if scale else none,
        op.sum(of_y, rest) if center else none,
        op.subtract(of_moving[0], op.multiply(op.sum(scaled, rest), inverse)),
        op.subtract(of_moving[1], of_variance),
    ]


RULES = {
    "relax.nn.layer_norm": _layer_norm,
    "relax.nn.rms_norm": _rms_norm,
    "relax.nn.batch_norm": _batch_norm,
}
