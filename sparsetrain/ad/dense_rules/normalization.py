# SPDX-License-Identifier: Apache-2.0
"""Layer, RMS, batch, group and instance norm.

All but RMS norm are ``y = h gamma + beta`` with ``h = (x - mean) / std`` over some axes, and
backward ``dx = (g - mean(g) - h mean(g h)) / std`` with ``g = cotangent gamma`` (Ba et al. 2016,
https://arxiv.org/abs/1607.06450). They differ in the axes, and in which elements share a gamma.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from tvm import relax
from tvm.relax import op

from sparsetrain.ad.cotangent import emit
from sparsetrain.ad.dense_rules.reading import constant
from sparsetrain.ad.dense_rules.reductions import mean_cotangent


class _Normal(NamedTuple):
    """``h``, and 1 / std, which has an extent of 1 at each of the axes."""

    value: relax.Expr
    inverse: relax.Expr
    axes: list[int]

    def backward(self, scaled: relax.Expr) -> relax.Expr:
        """The cotangent of what was normalized, from that of `value`."""
        scaled, axes = emit(scaled), self.axes
        shared = op.add(
            op.mean(scaled, axes, keepdims=True),
            op.multiply(self.value, op.mean(op.multiply(scaled, self.value), axes, keepdims=True)),
        )
        return op.multiply(self.inverse, op.subtract(scaled, shared))


def _inverse(variance: relax.Expr, call: Any) -> relax.Expr:
    epsilon = constant(float(call.attrs["epsilon"]), variance)
    return emit(op.divide(constant(1, variance), op.sqrt(op.add(variance, epsilon))))


def _normalized(x: relax.Expr, axes: list[int], call: Any) -> _Normal:
    centred = emit(op.subtract(x, emit(op.mean(x, axes, keepdims=True))))
    variance = emit(op.mean(op.multiply(centred, centred), axes, keepdims=True))
    inverse = _inverse(variance, call)
    return _Normal(emit(op.multiply(centred, inverse)), inverse, axes)


def _layer_norm(output: relax.Var, call: Any, cotangent: relax.Expr, builder: Any) -> list:
    """Each example alone; gamma and beta have the extents of `axes`.

    Whatever `center` and `scale` say: TVM's kernel does not read them.
    """
    x, gamma, beta = call.args
    normal = _normalized(x, [int(axis) for axis in call.attrs["axes"]], call)
    return [
        normal.backward(op.multiply(cotangent, gamma)),
        op.collapse_sum_to(op.multiply(cotangent, normal.value), gamma.ty.shape),
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
    """A vector of one number for each place of `axis`."""
    return emit(op.reshape(vector, [-1 if a == axis else 1 for a in range(rank)]))


def _affine(call: Any, cotangent: relax.Expr, normal: relax.Expr, axis: int) -> list:
    """The cotangents of gamma and beta, which have a number for each place of `axis`."""
    rest = [a for a in range(len(cotangent.ty.shape)) if a != axis]
    return [op.sum(emit(op.multiply(cotangent, normal)), rest), op.sum(cotangent, rest)]


def _batch_norm(output: relax.Var, call: Any, cotangent: relax.Expr, builder: Any) -> list:
    """All axes but one (Ioffe and Szegedy 2015, https://arxiv.org/abs/1502.03167).

    Forward in training: y, and ``(1 - momentum) moving + momentum batch's`` for mean and variance;
    otherwise y by the moving ones, and these as they were.
    """
    x, gamma = call.args[:2]
    axis, rank = int(call.attrs["axis"]) % len(x.ty.shape), len(x.ty.shape)
    of_y, *of_moving = (emit(relax.TupleGetItem(cotangent, n)) for n in range(3))
    scale, center = bool(call.attrs["scale"]), bool(call.attrs["center"])
    scaled = emit(op.multiply(of_y, _along(gamma, axis, rank))) if scale else of_y
    by = _by_the_batch if call.attrs["training"] else _by_moving_averages
    of_x, normal, of_moving = by(call, scaled, of_moving, axis)
    of_gamma, of_beta = _affine(call, of_y, normal, axis)
    none = emit(op.zeros(gamma.ty.shape, str(gamma.ty.dtype)))
    return [of_x, of_gamma if scale else none, of_beta if center else none, *of_moving]


def _by_the_batch(
    call: Any, scaled: relax.Expr, of_moving: Sequence[relax.Expr], axis: int
) -> tuple[relax.Expr, relax.Expr, list]:
    """Cotangent of x, the normal values, cotangents of the moving averages."""
    x, momentum = call.args[0], float(call.attrs["momentum"])
    axes = [a for a in range(len(x.ty.shape)) if a != axis]
    normal = _normalized(x, axes, call)
    # Every element has a share in the mean, and twice its distance from it in the variance.
    of_mean, of_variance = (
        emit(
            mean_cotangent(emit(op.multiply(constant(momentum, x), part)), x, axes=axes, keepdims=0)
        )
        for part in of_moving
    )
    centred = op.divide(normal.value, normal.inverse)
    moved = op.add(of_mean, op.multiply(op.multiply(constant(2, x), centred), of_variance))
    kept = [op.multiply(constant(1 - momentum, x), part) for part in of_moving]
    return op.add(normal.backward(scaled), moved), normal.value, kept


def _by_moving_averages(
    call: Any, scaled: relax.Expr, of_moving: Sequence[relax.Expr], axis: int
) -> tuple[relax.Expr, relax.Expr, list]:
    """The same where mean and variance are arguments."""
    x, _, _, mean, variance = call.args
    rank = len(x.ty.shape)
    axes = [a for a in range(rank) if a != axis]
    inverse = _inverse(variance, call)
    spread = _along(inverse, axis, rank)
    normal = emit(op.multiply(op.subtract(x, _along(mean, axis, rank)), spread))
    of_mean = op.multiply(op.sum(scaled, axes), inverse)
    slope = op.sum(emit(op.multiply(scaled, normal)), axes)
    of_variance = op.multiply(constant(0.5, x), op.multiply(slope, op.multiply(inverse, inverse)))
    kept = [op.subtract(a, b) for a, b in zip(of_moving, (of_mean, of_variance), strict=True)]
    return op.multiply(scaled, spread), normal, kept


def _group_norm(output: relax.Var, call: Any, cotangent: relax.Expr, builder: Any) -> list:
    """Groups of channels, with `axes` (Wu and He 2018, https://arxiv.org/abs/1803.08494)."""
    x, gamma = call.args[:2]
    shape = list(x.ty.shape)
    channel, groups = int(call.attrs["channel_axis"]) % len(shape), int(call.attrs["num_groups"])
    # The channels become two axes, of which the second is normalized.
    split = [*shape[:channel], groups, shape[channel] // groups, *shape[channel + 1 :]]
    others = (int(axis) % len(shape) for axis in call.attrs["axes"])
    axes = sorted({channel + 1, *(a + (a > channel) for a in others)})
    normal = _normalized(emit(op.reshape(x, split)), axes, call)
    scaled = emit(op.multiply(cotangent, _along(gamma, channel, len(shape))))
    of_x = normal.backward(op.reshape(scaled, split))
    value = emit(op.reshape(normal.value, shape))
    return [op.reshape(emit(of_x), shape), *_affine(call, cotangent, value, channel)]


def _instance_norm(output: relax.Var, call: Any, cotangent: relax.Expr, builder: Any) -> list:
    """Each example and channel alone (Ulyanov et al. 2016, https://arxiv.org/abs/1607.08022)."""
    x, gamma = call.args[:2]
    channel = int(call.attrs["channel_axis"]) % len(x.ty.shape)
    normal = _normalized(x, [int(axis) for axis in call.attrs["axes"]], call)
    scaled = op.multiply(cotangent, _along(gamma, channel, len(x.ty.shape)))
    return [normal.backward(scaled), *_affine(call, cotangent, normal.value, channel)]


RULES = {
    "relax.nn.layer_norm": _layer_norm,
    "relax.nn.rms_norm": _rms_norm,
    "relax.nn.batch_norm": _batch_norm,
    "relax.nn.group_norm": _group_norm,
    "relax.nn.instance_norm": _instance_norm,
}
