# SPDX-License-Identifier: Apache-2.0
"""What rules read from a call: numbers in its arguments, constants in its dtype."""

from __future__ import annotations

from typing import Any

from tvm import relax


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
