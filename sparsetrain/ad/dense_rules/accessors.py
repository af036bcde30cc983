# SPDX-License-Identifier: Apache-2.0
"""Accessors for rules: numbers in the arguments of a call, constants in its dtype."""

from __future__ import annotations

from typing import Any

from tvm import relax
from tvm.relax import op
from tvm_ffi import structural_equal


def constant(value: float, like: relax.Expr) -> relax.Expr:
    """`value` in the dtype of `like`."""
    return relax.const(value, str(like.ty.dtype))


def number(value: Any) -> Any:
    """The Python number in an argument of a Relax call."""
    value = getattr(value, "value", value)
    return getattr(value, "value", value)


def numbers(argument: Any) -> list[int]:
    """The whole numbers in an argument that is a tuple."""
    items = argument.fields if isinstance(argument, relax.Tuple) else argument.values
    return [int(number(item)) for item in items]


def fields(tensors: relax.Expr) -> list[relax.Expr]:
    """The fields of a tuple that is written out, or of a variable that holds one."""
    if isinstance(tensors, relax.Tuple):
        return list(tensors.fields)
    return [relax.TupleGetItem(tensors, index) for index in range(len(tensors.ty.fields))]


def fitted(cotangent: relax.Expr, output: relax.Expr, argument: relax.Expr) -> relax.Expr:
    """A cotangent in the shape of `output`, summed over where `argument` was broadcast to it."""
    if structural_equal(output.ty.shape, argument.ty.shape):
        return cotangent
    return op.collapse_sum_to(cotangent, argument.ty.shape)
