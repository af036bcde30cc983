# SPDX-License-Identifier: Apache-2.0
"""Tensors that have a gradient, and the gradient's shape.

An int8 table represents floats: its gradient is float32, without columns for the scales.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from tvm import relax, tirx

from sparsetrain.kernels.table_formats import TableFormat, format_of
from sparsetrain.sparse_tensor import RowSparse

OPERATORS = "relax.sparsetrain."  # prefix of this package's operators


def is_float_tensor(ty: Any) -> bool:
    """Whether a type is a tensor of floating-point numbers."""
    return isinstance(ty, relax.TensorType) and "float" in str(ty.dtype)


def is_float(ty: Any) -> bool:
    """Whether a type is a tensor of floating-point numbers, or a tuple with one."""
    if isinstance(ty, relax.TupleType):
        return any(is_float(item) for item in ty.fields)
    return is_float_tensor(ty)


def has_gradient(var: relax.Var, bindings: Iterable[relax.VarBinding]) -> bool:
    """Whether a variable is a floating-point tensor, or an int8 table that represents one.

    An int8 tensor is such a table if an operator of this package looks it up.
    """
    if _packed(var.ty) is None:
        return is_float_tensor(var.ty)
    calls = (b.value for b in bindings if isinstance(b.value, relax.Call))
    ours = (call for call in calls if getattr(call.op, "name", "").startswith(OPERATORS))
    return any(argument.same_as(var) for call in ours for argument in call.args[:1])


def extents_of(value: Any) -> list[Any] | None:
    """Return the shape of a tensor's gradient, dense or row-sparse; None if unknown."""
    ty = value if isinstance(value, RowSparse) else getattr(value, "ty", None)
    shape = getattr(ty, "shape", None)
    if shape is None:
        return None
    extents = [int(n) if isinstance(n, (int, tirx.IntImm)) else n for n in shape]
    stored = _packed(ty)
    return extents if stored is None else [extents[0], stored.width(extents[1])]


def shapes_differ(cotangent: Any, target: Any) -> bool:
    """Whether two shapes cannot be equal; kernels would read past the end of the smaller one."""
    left, right = extents_of(cotangent), extents_of(target)
    if left is None or right is None:
        return False
    if len(left) != len(right):
        return True
    pairs = zip(left, right, strict=True)
    return any(a != b for a, b in pairs if isinstance(a, int) and isinstance(b, int))


def _packed(ty: Any) -> TableFormat | None:
    """Return the format of a trainable table that packs numbers and scales in a row, or None."""
    if not isinstance(ty, relax.TensorType) or ty.ndim != 2:
        return None
    stored = format_of(str(ty.dtype))
    return stored if stored.trains_packed else None
