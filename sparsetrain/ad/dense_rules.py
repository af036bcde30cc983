# SPDX-License-Identifier: Apache-2.0
"""Dense reverse rules that recommendation models need and TVM 0.27 lacks or has in another form.

Registered with `defvjp` like anybody's own; `tests/ad` checks each against central differences.
"""

from __future__ import annotations

import math
from typing import Any

from tvm import relax, te, tirx
from tvm.relax import op

from sparsetrain.ad.cotangent import emit
from sparsetrain.ad.rules import defvjp
from sparsetrain.errors import ConfigError
from sparsetrain.relax_op import define_op


def _const(value: float, like: relax.Expr) -> relax.Expr:
    return relax.const(value, str(like.ty.dtype))


def _relu(output: relax.Var, call: Any, cotangent: relax.Expr, builder: Any) -> list:
    """Backward: ``where(y > 0, cotangent, 0)``.

    Tests the output, so that matmul, bias and ReLU can be one kernel; 0 at 0, as in PyTorch.
    """
    zero = _const(0, output)
    return [op.where(op.greater(output, zero), cotangent, zero)]


def _square(output: relax.Var, call: Any, cotangent: relax.Expr, builder: Any) -> list:
    """Backward: ``2 x cotangent``."""
    return [op.multiply(_const(2, output), op.multiply(call.args[0], cotangent))]


def _same_elements(output: relax.Var, call: Any, cotangent: relax.Expr, builder: Any) -> list:
    """Forward: the same elements under another shape. Backward: the old shape."""
    return [op.reshape(cotangent, call.args[0].ty.shape)]


def _clip(output: relax.Var, call: Any, cotangent: relax.Expr, builder: Any) -> list:
    """Backward: the cotangent where ``low <= x <= high``."""
    x, low, high = call.args
    inside = op.logical_and(
        op.greater_equal(x, _const(float(_number(low)), x)),
        op.less_equal(x, _const(float(_number(high)), x)),
    )
    return [op.where(inside, cotangent, _const(0, x)), None, None]


def _number(value: Any) -> Any:
    value = getattr(value, "value", value)
    return getattr(value, "value", value)


def _softplus(output: relax.Var, call: Any, cotangent: relax.Expr, builder: Any) -> list:
    """Backward: ``sigmoid(beta x) cotangent``."""
    beta = _const(float(call.attrs["beta"]), output)
    return [op.multiply(op.sigmoid(op.multiply(beta, call.args[0])), cotangent)]


def _gelu(output: relax.Var, call: Any, cotangent: relax.Expr, builder: Any) -> list:
    """Forward: ``x Phi(x)``. Backward: ``(Phi(x) + x phi(x)) cotangent``, Phi the normal law's."""
    x = call.args[0]
    phi_sum = op.multiply(
        _const(0.5, x),
        op.add(_const(1, x), op.erf(op.multiply(x, _const(math.sqrt(0.5), x)))),
    )
    density = op.multiply(
        _const(1 / math.sqrt(2 * math.pi), x),
        op.exp(op.multiply(_const(-0.5, x), op.multiply(x, x))),
    )
    return [op.multiply(op.add(phi_sum, op.multiply(x, density)), cotangent)]


def _layer_norm(output: relax.Var, call: Any, cotangent: relax.Expr, builder: Any) -> list:
    """Forward: ``y = h gamma + beta`` with ``h = (x - mean) / std`` over `axes`.

    Backward: ``dx = (g - mean(g) - h mean(g h)) / std`` with ``g = cotangent gamma``
    (Ba et al. 2016, https://arxiv.org/abs/1607.06450).
    """
    x, gamma, beta = call.args
    axes = [int(axis) for axis in call.attrs["axes"]]
    mean = emit(op.mean(x, axes, keepdims=True))
    centred = emit(op.subtract(x, mean))
    variance = emit(op.mean(op.multiply(centred, centred), axes, keepdims=True))
    epsilon = _const(float(call.attrs["epsilon"]), x)
    inverse = emit(op.divide(_const(1, x), op.sqrt(op.add(variance, epsilon))))
    normal = emit(op.multiply(centred, inverse))
    scaled = emit(op.multiply(cotangent, gamma) if call.attrs["scale"] else cotangent)
    shared = op.add(
        op.mean(scaled, axes, keepdims=True),
        op.multiply(normal, op.mean(op.multiply(scaled, normal), axes, keepdims=True)),
    )
    return [
        op.multiply(inverse, op.subtract(scaled, shared)),
        op.collapse_sum_to(op.multiply(cotangent, normal), gamma.ty.shape),
        op.collapse_sum_to(cotangent, beta.ty.shape),
    ]


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


# Cotangent of a mean and its argument -> the cotangent spread over the argument, divided by count.
mean_cotangent = define_op(
    "mean_cotangent", ("cotangent", "x"), lambda call: call.args[1].ty, _mean_kernel
)


def _mean(output: relax.Var, call: Any, cotangent: relax.Expr, builder: Any) -> list:
    """Backward: the cotangent over the number of elements, which may be symbolic (a batch)."""
    x, rank = call.args[0], len(call.args[0].ty.shape)
    given = call.attrs["axis"]
    axes = range(rank) if given is None else [int(axis) % rank for axis in given]
    keepdims = int(call.attrs["keepdims"])
    return [mean_cotangent(cotangent, x, axes=list(axes), keepdims=keepdims)]


def _slice_kernel(builder: relax.BlockBuilder, call: Any) -> relax.Expr:
    axes, begin, strides = (
        [int(v) for v in call.attrs[name]] for name in ("axes", "begin", "strides")
    )

    def place(cotangent: te.Tensor, x: te.Tensor) -> te.Tensor:
        def element(*index: Any) -> Any:
            taken, inside = list(index), tirx.const(True, "bool")
            for axis, first, step in zip(axes, begin, strides, strict=True):
                first = first + x.shape[axis] if first < 0 else tirx.const(first, "int64")
                offset = index[axis] - first
                inside = tirx.all(inside, offset >= 0, tirx.floormod(offset, step) == 0)
                taken[axis] = tirx.floordiv(offset, step)
                inside = tirx.all(inside, taken[axis] < cotangent.shape[axis])
            zero = tirx.const(0, cotangent.dtype)
            return tirx.if_then_else(inside, cotangent(*taken), zero)

        return te.compute(x.shape, element, "slice_cotangent")

    return builder.call_te(place, *call.args)


# Cotangent of a strided slice and its argument -> zeros with the cotangent in the slice's place.
slice_cotangent = define_op(
    "slice_cotangent", ("cotangent", "x"), lambda call: call.args[1].ty, _slice_kernel
)


def _strided_slice(output: relax.Var, call: Any, cotangent: relax.Expr, builder: Any) -> list:
    """Forward: ``y = x[begin:end:stride]`` per axis. Backward: zeros around the cotangent."""
    x = call.args[0]
    axes, begin, _, *rest = (_numbers(argument) for argument in call.args[1:])
    strides = rest[0] if rest else [1] * len(axes)
    if any(step <= 0 for step in strides):
        raise ConfigError(f"relax.strided_slice: no derivative for strides {strides} below 1")
    axes = [axis % len(x.ty.shape) for axis in axes]
    rest_of_arguments = [None] * (len(call.args) - 1)
    return [
        slice_cotangent(cotangent, x, axes=axes, begin=begin, strides=strides),
        *rest_of_arguments,
    ]


def _numbers(argument: Any) -> list[int]:
    items = argument.fields if isinstance(argument, relax.Tuple) else argument.values
    return [int(_number(item)) for item in items]


def _concat(
    output: relax.Var, call: Any, cotangent: relax.Expr, builder: relax.BlockBuilder
) -> list:
    """Backward: each argument's part of the cotangent; TVM's rule needs static extents."""
    arguments = [emit(item) for item in _fields(call.args[0])]
    axis = int(call.attrs["axis"] or 0) % len(output.ty.shape)
    return [
        tuple(
            builder.emit_te(_concat_part, cotangent, argument, arguments[:position], axis)
            for position, argument in enumerate(arguments)
        )
    ]


def _fields(tensors: relax.Expr) -> list[relax.Expr]:
    """The fields of a tuple that is written out, or of a variable that holds one."""
    if isinstance(tensors, relax.Tuple):
        return list(tensors.fields)
    return [relax.TupleGetItem(tensors, index) for index in range(len(tensors.ty.fields))]


def _concat_part(
    whole: te.Tensor, part: te.Tensor, before: list[te.Tensor], axis: int
) -> te.Tensor:
    """The part of `whole` that lies behind `before`; its place comes from their shapes."""
    start: Any = tirx.const(0, "int64")
    for tensor in before:
        start = start + tensor.shape[axis]

    def element(*index: Any) -> Any:
        return whole(*(i + start if a == axis else i for a, i in enumerate(index)))

    return te.compute(part.shape, element, "concat_cotangent")


def _bce_type(call: Any) -> relax.Type:
    return call.args[0].ty


def _bce_kernel(builder: relax.BlockBuilder, call: Any) -> relax.Expr:
    def loss(logits: te.Tensor, labels: te.Tensor) -> te.Tensor:
        def element(*index: Any) -> Any:
            z, y = logits(*index), labels(*index)
            zero = tirx.const(0, logits.dtype)
            return tirx.max(z, zero) - z * y + tirx.log1p(tirx.exp(-tirx.abs(z)))

        return te.compute(logits.shape, element, "bce_with_logits")

    return builder.call_te(loss, *call.args)


# (B, ...) logits, labels in [0, 1] -> loss of each: max(z, 0) - z y + log(1 + exp(-|z|)).
bce_with_logits = define_op("bce_with_logits", ("logits", "labels"), _bce_type, _bce_kernel)


def _bce(output: relax.Var, call: Any, cotangent: relax.Expr, builder: Any) -> list:
    """Backward: ``(sigmoid(z) - y) cotangent`` for the logits, ``-z cotangent`` for the labels."""
    logits, labels = call.args
    return [
        op.multiply(op.subtract(op.sigmoid(logits), labels), cotangent),
        op.negative(op.multiply(logits, cotangent)),
    ]


RULES = {
    "relax.nn.relu": _relu,
    "relax.square": _square,
    "relax.squeeze": _same_elements,
    "relax.flatten": _same_elements,
    "relax.clip": _clip,
    "relax.nn.softplus": _softplus,
    "relax.nn.gelu": _gelu,
    "relax.nn.layer_norm": _layer_norm,
    "relax.mean": _mean,
    "relax.concat": _concat,
    "relax.strided_slice": _strided_slice,
    "relax.sparsetrain.bce_with_logits": _bce,
}

for _name, _rule in RULES.items():
    defvjp(_name, _rule)
