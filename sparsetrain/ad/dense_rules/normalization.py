# SPDX-License-Identifier: Apache-2.0
"""Layer norm and RMS norm."""

from __future__ import annotations

from typing import Any

from tvm import relax
from tvm.relax import op

from sparsetrain.ad.cotangent import emit
from sparsetrain.ad.dense_rules.reading import constant


def _layer_norm(output: relax.Var, call: Any, cotangent: relax.Expr, builder: Any) -> list:
    """Forward: ``y = h gamma + beta`` with ``h = (x - mean) / std`` over `axes`.

    Whatever `center` and `scale` say: TVM's kernel does not read them.

    Backward: ``dx = (g - mean(g) - h mean(g h)) / std`` with ``g = cotangent gamma``
    (Ba et al. 2016, https://arxiv.org/abs/1607.06450).
    """
    x, gamma, beta = call.args
    axes = [int(axis) for axis in call.attrs["axes"]]
    mean = emit(op.mean(x, axes, keepdims=True))
    centred = emit(op.subtract(x, mean))
    variance = emit(op.mean(op.multiply(centred, centred), axes, keepdims=True))
    epsilon = constant(float(call.attrs["epsilon"]), x)
    inverse = emit(op.divide(constant(1, x), op.sqrt(op.add(variance, epsilon))))
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
    mean_square = op.mean(op.multiply(x, x), axes, keepdims=True)
    epsilon = constant(float(call.attrs["epsilon"]), x)
    inverse = emit(op.divide(constant(1, x), op.sqrt(op.add(mean_square, epsilon))))
    normal = emit(op.multiply(x, inverse))
    scaled = emit(op.multiply(cotangent, weight))
    shared = op.mean(op.multiply(scaled, normal), axes, keepdims=True)
    return [
        op.multiply(inverse, op.subtract(scaled, op.multiply(normal, shared))),
        op.collapse_sum_to(op.multiply(cotangent, normal), weight.ty.shape),
    ]


RULES = {
    "relax.nn.layer_norm": _layer_norm,
    "relax.nn.rms_norm": _rms_norm,
}
