# SPDX-License-Identifier: Apache-2.0
"""The same elements in another place: shapes, slices, concatenation, stacking."""

from __future__ import annotations

from typing import Any

from tvm import relax, te, tirx
from tvm.relax import op

from sparsetrain.ad.cotangent import emit
from sparsetrain.ad.dense_rules.reading import fields, numbers
from sparsetrain.errors import ConfigError
from sparsetrain.kernels.relax_op import define_op


def _same_elements(output: relax.Var, call: Any, cotangent: relax.Expr, builder: Any) -> list:
    """Forward: the same elements under another shape. Backward: the old shape."""
    return [op.reshape(cotangent, call.args[0].ty.shape)]


def _slice_kernel(builder: relax.BlockBuilder, call: Any) -> relax.Expr:
    axes, begin, strides = (
        [int(v) for v in call.attrs[name]] for name in ("axes", "begin", "strides")
    )

    def place(cotangent: te.Tensor, x: te.Tensor) -> te.Tensor:
        def element(*index: Any) -> Any:
            taken, inside = list(index), tirx.const(True, "bool")
            for axis, first, step in zip(axes, begin, strides, strict=True):
                if first < 0:  # from the end, and no further than to the front
                    first = tirx.max(first + x.shape[axis], 0)
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
    try:
        axes, begin, *rest = (numbers(call.args[n]) for n in (1, 2, *range(4, len(call.args))))
    except TypeError:  # of a letter; the end may be one, it is in the cotangent's shape
        raise ConfigError(
            "relax.strided_slice: no derivative where a slice begins, or steps, at a letter"
        ) from None
    strides = rest[0] if rest else [1] * len(axes)
    if any(step <= 0 for step in strides):
        raise ConfigError(f"relax.strided_slice: no derivative for strides {strides} below 1")
    axes = [axis % len(x.ty.shape) for axis in axes]
    rest_of_arguments = [None] * (len(call.args) - 1)
    return [
        slice_cotangent(cotangent, x, axes=axes, begin=begin, strides=strides),
        *rest_of_arguments,
    ]


def _concat(
    output: relax.Var, call: Any, cotangent: relax.Expr, builder: relax.BlockBuilder
) -> list:
    """Backward: each argument's part of the cotangent; TVM's rule needs static extents."""
    arguments = [emit(item) for item in fields(call.args[0])]
    axis = int(call.attrs["axis"] or 0) % len(output.ty.shape)
    return [
        tuple(
            builder.emit_te(_concat_part, cotangent, argument, arguments[:position], axis)
            for position, argument in enumerate(arguments)
        )
    ]


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


def _stack(output: relax.Var, call: Any, cotangent: relax.Expr, builder: Any) -> list:
    """Backward: argument `n` gets the cotangent at place `n` of the new axis."""
    axis = int(call.attrs["axis"] or 0) % len(output.ty.shape)
    count = len(call.args[0].ty.fields)
    parts = (op.strided_slice(cotangent, [axis], [n], [n + 1]) for n in range(count))
    return [tuple(emit(op.squeeze(emit(part), [axis])) for part in parts)]


def _flip(output: relax.Var, call: Any, cotangent: relax.Expr, builder: Any) -> list:
    return [op.flip(cotangent, int(call.attrs["axis"]))]


def _tril(output: relax.Var, call: Any, cotangent: relax.Expr, builder: Any) -> list:
    return [op.tril(cotangent, call.args[1]), None]


def _pad(output: relax.Var, call: Any, cotangent: relax.Expr, builder: relax.BlockBuilder) -> list:
    """Forward: a border of one value. Backward: the cotangent without the border."""
    if str(call.attrs["pad_mode"]) != "constant":
        raise ConfigError(f"relax.nn.pad: no derivative for mode {str(call.attrs['pad_mode'])!r}")
    before = [int(width) for width in call.attrs["pad_width"]][::2]

    def inner(whole: te.Tensor, x: te.Tensor) -> te.Tensor:
        return te.compute(
            x.shape,
            lambda *index: whole(*(i + w for i, w in zip(index, before, strict=True))),
            "pad_cotangent",
        )

    return [builder.emit_te(inner, cotangent, call.args[0])]


RULES = {
    "relax.nn.batch_flatten": _same_elements,
    "relax.flip": _flip,
    "relax.tril": _tril,
    "relax.nn.pad": _pad,
    "relax.squeeze": _same_elements,
    "relax.flatten": _same_elements,
    "relax.concat": _concat,
    "relax.stack": _stack,
    "relax.strided_slice": _strided_slice,
}
