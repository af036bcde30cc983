# SPDX-License-Identifier: Apache-2.0
"""Reverse rules of operators that move or repeat elements: reshape, slice, stack, tile, fill."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tvm import relax, te, tirx
from tvm.relax import op
from tvm_ffi import structural_equal

from sparsetrain.ad.copied_rows import copied_parameter, is_small_part
from sparsetrain.ad.cotangent import emit
from sparsetrain.ad.dense_rules.accessors import fields, number, numbers
from sparsetrain.ad.vjp_rules import row_sparse_cotangent
from sparsetrain.errors import ConfigError
from sparsetrain.kernels.relax_op import define_op


def _same_elements(output: relax.Var, call: Any, cotangent: relax.Expr, builder: Any) -> list:
    """Forward: a reshape. Backward: a reshape to the argument's shape."""
    return [op.reshape(cotangent, call.args[0].ty.shape)]


def _slice_kernel(builder: relax.BlockBuilder, call: Any) -> relax.Expr:
    cuts = list(zip(*(map(int, call.attrs[n]) for n in ("axes", "begin", "strides")), strict=True))
    return builder.call_te(lambda cotangent, x: _placed(cotangent, x.shape, cuts), *call.args)


def _placed(cotangent: te.Tensor, shape: Sequence[Any], cuts: Sequence[Any]) -> te.Tensor:
    """Place a cotangent in zeros of `shape`, at the (axis, begin, stride) of the slice."""

    def element(*index: Any) -> Any:
        taken, inside = list(index), tirx.const(True, "bool")
        for axis, first, step in cuts:
            if first < 0:  # counted from the end, and clipped at the front
                first = tirx.max(first + shape[axis], 0)
            offset = index[axis] - first
            inside = tirx.all(inside, offset >= 0, tirx.floormod(offset, step) == 0)
            taken[axis] = tirx.floordiv(offset, step)
            inside = tirx.all(inside, taken[axis] < cotangent.shape[axis])
        zero = tirx.const(0, cotangent.dtype)
        return tirx.if_then_else(inside, cotangent(*taken), zero)

    return te.compute(shape, element, "slice_cotangent")


# Cotangent of a strided slice, and the slice's argument x -> zeros like x, with the cotangent at
# the slice's place.
slice_cotangent = define_op(
    "slice_cotangent", ("cotangent", "x"), lambda call: call.args[1].ty, _slice_kernel
)


def _strided_slice(output: relax.Var, call: Any, cotangent: relax.Expr, builder: Any) -> list:
    """Forward: ``y = x[begin:end:stride]`` per axis. Backward: zeros around the cotangent.

    The cotangent is row-sparse for a small part of a parameter's rows, see `copied_rows`.
    """
    x = call.args[0]
    try:
        axes, begin, *rest = (numbers(call.args[n]) for n in (1, 2, *range(4, len(call.args))))
    except TypeError:  # symbolic; only the end may be: the cotangent's shape shows it
        raise ConfigError(
            "relax.strided_slice: no derivative for a symbolic begin or stride: use static numbers"
        ) from None
    strides = rest[0] if rest else [1] * len(axes)
    if any(step <= 0 for step in strides):
        raise ConfigError(
            f"relax.strided_slice: no derivative for strides {strides}: use 1 or more"
        )
    axes = [axis % len(x.ty.shape) for axis in axes]
    rest_of_arguments = [None] * (len(call.args) - 1)
    source = copied_parameter(x, builder)
    if source is not None and x is not source and _is_part(output, x, source, axes):
        raise ConfigError(
            f"relax.strided_slice of copies of parameter {source.name!r} has no row-sparse "
            "cotangent: slice the parameter itself, or put ad.densify around it to accept a dense "
            "one"
        )
    if 0 in axes and _is_part_of_rows(output, x):
        row, *columns = sorted(zip(axes, begin, strides, strict=True))
        places = builder.emit_te(_rows_read, x, cotangent, *row[1:])
        if columns:
            cotangent = builder.emit_te(_rows_placed, x, cotangent, columns)
        return [row_sparse_cotangent(x, places, cotangent), *rest_of_arguments]
    return [
        slice_cotangent(cotangent, x, axes=axes, begin=begin, strides=strides),
        *rest_of_arguments,
    ]


def _is_part(output: relax.Expr, x: relax.Expr, source: relax.Var, axes: Sequence[int]) -> bool:
    """Whether less than half of an axis, or a symbolic part, is read; columns are ignored."""
    last = len(x.ty.shape) - 1
    columns = {last} if structural_equal(x.ty.shape[last], source.ty.shape[-1]) else set()
    return any(is_small_part(output.ty.shape[n], x.ty.shape[n]) for n in axes if n not in columns)


def _is_part_of_rows(output: relax.Expr, x: relax.Expr) -> bool:
    """Whether `x` is a parameter of known shape and the read has less than half of its rows."""
    if isinstance(x, relax.DataflowVar) or not all(isinstance(n, tirx.IntImm) for n in x.ty.shape):
        return False
    return is_small_part(output.ty.shape[0], x.ty.shape[0])


def _rows_read(x: te.Tensor, cotangent: te.Tensor, begin: int, step: int) -> te.Tensor:
    first = tirx.const(begin if begin >= 0 else max(begin + int(x.shape[0]), 0), "int64")
    return te.compute(cotangent.shape[:1], lambda n: first + tirx.Cast("int64", n) * step, "rows")


def _rows_placed(x: te.Tensor, cotangent: te.Tensor, columns: Sequence[Any]) -> te.Tensor:
    return _placed(cotangent, (cotangent.shape[0], *x.shape[1:]), columns)


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
    """Cut out the part of `whole` that follows the tensors `before`, located by their shapes."""
    start: Any = tirx.const(0, "int64")
    for tensor in before:
        start = start + tensor.shape[axis]

    def element(*index: Any) -> Any:
        return whole(*(i + start if a == axis else i for a, i in enumerate(index)))

    return te.compute(part.shape, element, "concat_cotangent")


def _stack(output: relax.Var, call: Any, cotangent: relax.Expr, builder: Any) -> list:
    """Backward: argument `n` gets the cotangent at index `n` of the new axis."""
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


def _fill(cotangent: Any, value: Any) -> Any:
    """Return the cotangent of a fill value, which has one element."""
    total = emit(op.astype(op.sum(cotangent), str(value.ty.dtype)))
    return op.reshape(total, value.ty.shape)


def _full(output: Any, call: Any, cotangent: Any, builder: Any) -> list:
    """Backward: the value gets the sum of the cotangent."""
    return [None, _fill(cotangent, call.args[1])]


def _full_like(output: Any, call: Any, cotangent: Any, builder: Any) -> list:
    """Backward: the value gets the sum of the cotangent; the first argument gives the shape."""
    return [op.grad.no_grad(call.args[0]), _fill(cotangent, call.args[1])]


def _tile(output: Any, call: Any, cotangent: Any, builder: Any) -> list:
    """Forward: the whole of x, `repeats` times along each axis. Backward: sums over the repeats."""
    shape = list(call.args[0].ty.shape)
    times = [int(number(count)) for count in call.attrs["repeats"]]
    rank = max(len(shape), len(times))
    times = [1] * (rank - len(times)) + times
    extents = [1] * (rank - len(shape)) + shape
    pairs = [extent for pair in zip(times, extents, strict=True) for extent in pair]
    total = op.sum(emit(op.reshape(cotangent, pairs)), axis=list(range(0, 2 * rank, 2)))
    return [op.reshape(emit(total), shape)]


def _repeat(output: Any, call: Any, cotangent: Any, builder: Any) -> list:
    """Forward: each element of x, `repeats` times in a row. Backward: sums over the repeats."""
    shape, times, axis = list(call.args[0].ty.shape), int(call.attrs["repeats"]), call.attrs["axis"]
    if axis is None:
        total = op.sum(emit(op.reshape(cotangent, [*shape, times])), axis=[-1])
    else:
        place = int(axis) % len(shape) + 1
        split = [*shape[:place], times, *shape[place:]]
        total = op.sum(emit(op.reshape(cotangent, split)), axis=[place])
    return [total]


def _collapse(output: Any, call: Any, cotangent: Any, builder: Any) -> list:
    """Forward: sums to a smaller shape. Backward: broadcasts along the summed axes."""
    return [op.broadcast_to(cotangent, call.args[0].ty.shape), None]


def _collapse_like(output: Any, call: Any, cotangent: Any, builder: Any) -> list:
    """Forward and backward as in `_collapse`; the second argument only gives the shape."""
    return [
        op.broadcast_to(cotangent, call.args[0].ty.shape),
        op.grad.no_grad(call.args[1]),
    ]


def _constant(output: Any, call: Any, cotangent: Any, builder: Any) -> list:
    """Forward: a result that depends only on the argument's shape. It has no cotangent."""
    return [op.grad.no_grad(argument) for argument in call.args]


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
    "relax.collapse_sum_to": _collapse,
    "relax.collapse_sum_like": _collapse_like,
    "relax.eye_like": _constant,
    "relax.full": _full,
    "relax.full_like": _full_like,
    "relax.tile": _tile,
    "relax.repeat": _repeat,
}
