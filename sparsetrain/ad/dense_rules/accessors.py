# SPDX-License-Identifier: Apache-2.0
"""Accessors for rules: read numbers and tuples in a call's arguments, and make constants."""

from __future__ import annotations

from typing import Any

from tvm import relax
from tvm.relax import op
from tvm_ffi import structural_equal


def constant(value: float, like: relax.Expr) -> relax.Expr:
    """Return a constant `value` in the dtype of `like`."""
    return relax.const(value, str(like.ty.dtype))


def number(value: Any) -> Any:
    """Return an argument of a Relax call as a Python number."""
    value = getattr(value, "value", value)
    return getattr(value, "value", value)


def numbers(argument: Any) -> list[int]:
    """Return an argument that is a tuple of integers as a list."""
    items = argument.fields if isinstance(argument, relax.Tuple) else argument.values
    return [int(number(item)) for item in items]


def fields(tensors: relax.Expr) -> list[relax.Expr]:
    """Return the fields of a tuple expression, or of a variable of a tuple type."""
    if isinstance(tensors, relax.Tuple):
        return list(tensors.fields)
    return [relax.TupleGetItem(tensors, index) for index in range(len(tensors.ty.fields))]


def fitted(cotangent: relax.Expr, output: relax.Expr, argument: relax.Expr) -> relax.Expr:
    """Sum a cotangent, shaped like `output`, over the axes where `argument` was broadcast."""
    if structural_equal(output.ty.shape, argument.ty.shape):
        return cotangent
    return op.collapse_sum_to(cotangent, argument.ty.shape)
