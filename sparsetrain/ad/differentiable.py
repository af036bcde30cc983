# SPDX-License-Identifier: Apache-2.0
"""Differentiable tensors: which have a gradient, and its shape.

A table in int8 stands for floats: its gradient is float32, without the bytes beside the numbers.
"""

from __future__ import annotations

from typing import Any

from tvm import relax, tirx

from sparsetrain.kernels.table_formats import INT8, width_of
from sparsetrain.sparse_tensor import RowSparse


def is_float_tensor(ty: Any) -> bool:
    """Whether it is a tensor of floating-point numbers."""
    return isinstance(ty, relax.TensorType) and "float" in str(ty.dtype)


def has_gradient(ty: Any) -> bool:
    """Whether it is a tensor of floating-point numbers, or stands for one."""
    return is_float_tensor(ty) or _is_table(ty)


def extents_of(value: Any) -> list[Any] | None:
    """The shape of a tensor's gradient, or of a row-sparse one; None if it is not known."""
    ty = value if isinstance(value, RowSparse) else getattr(value, "ty", None)
    shape = getattr(ty, "shape", None)
    if shape is None:
        return None
    extents = [int(n) if isinstance(n, (int, tirx.IntImm)) else n for n in shape]
    return [extents[0], width_of(extents[1], INT8)] if _is_table(ty) else extents


def _is_table(ty: Any) -> bool:
    return isinstance(ty, relax.TensorType) and ty.ndim == 2 and str(ty.dtype) == INT8
