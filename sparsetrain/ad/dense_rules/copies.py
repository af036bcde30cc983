# SPDX-License-Identifier: Apache-2.0
"""One element in several places of the result: filling, tiling, repeating. Their cotangents sum."""

from __future__ import annotations

from typing import Any

from tvm.relax import op

from sparsetrain.ad.cotangent import emit
from sparsetrain.ad.dense_rules.reading import number


def _fill(cotangent: Any, value: Any) -> Any:
    """The cotangent of a filling value, which has one element."""
    total = emit(op.astype(op.sum(cotangent), str(value.ty.dtype)))
    return op.reshape(total, value.ty.shape)


def _full(output: Any, call: Any, cotangent: Any, builder: Any) -> list:
    """Backward: the sum of the cotangent, for the value."""
    return [None, _fill(cotangent, call.args[1])]


def _full_like(output: Any, call: Any, cotangent: Any, builder: Any) -> list:
    """Backward: the sum of the cotangent, for the value; the first argument is but a shape."""
    return [op.grad.no_grad(call.args[0]), _fill(cotangent, call.args[1])]


def _tile(output: Any, call: Any, cotangent: Any, builder: Any) -> list:
    """Forward: the whole of x, `repeats` times along each axis. Backward: sums over the times."""
    shape = list(call.args[0].ty.shape)
    times = [int(number(count)) for count in call.attrs["repeats"]]
    rank = max(len(shape), len(times))
    times = [1] * (rank - len(times)) + times
    extents = [1] * (rank - len(shape)) + shape
    pairs = [extent for pair in zip(times, extents, strict=True) for extent in pair]
    total = op.sum(emit(op.reshape(cotangent, pairs)), axis=list(range(0, 2 * rank, 2)))
    return [op.reshape(emit(total), shape)]


def _repeat(output: Any, call: Any, cotangent: Any, builder: Any) -> list:
    """Forward: each element of x, `repeats` times in a row. Backward: sums over the times."""
    shape, times, axis = list(call.args[0].ty.shape), int(call.attrs["repeats"]), call.attrs["axis"]
    if axis is None:
        total = op.sum(emit(op.reshape(cotangent, [*shape, times])), axis=[-1])
    else:
        place = int(axis) % len(shape) + 1
        split = [*shape[:place], times, *shape[place:]]
        total = op.sum(emit(op.reshape(cotangent, split)), axis=[place])
    return [total]


def _collapse(output: Any, call: Any, cotangent: Any, builder: Any) -> list:
    """Forward: sums to a smaller shape. Backward: repeated where it was summed."""
    return [op.broadcast_to(cotangent, call.args[0].ty.shape), None]


def _collapse_like(output: Any, call: Any, cotangent: Any, builder: Any) -> list:
    """The same; the second argument is but a shape."""
    return [
        op.broadcast_to(cotangent, call.args[0].ty.shape),
        op.grad.no_grad(call.args[1]),
    ]


def _constant(output: Any, call: Any, cotangent: Any, builder: Any) -> list:
    """Forward: a result that depends on the argument's shape alone."""
    return [op.grad.no_grad(argument) for argument in call.args]


RULES = {
    "relax.collapse_sum_to": _collapse,
    "relax.collapse_sum_like": _collapse_like,
    "relax.eye_like": _constant,
    "relax.full": _full,
    "relax.full_like": _full_like,
    "relax.tile": _tile,
    "relax.repeat": _repeat,
}
