# SPDX-License-Identifier: Apache-2.0
"""Explicit fused multiply-adds in a formula's expressions, so that LLVM does not choose.

``a * b + c`` is rounded twice, or once as one instruction. LLVM 22 decides by context: in ``a * b +
c * d`` it may fuse either product, or neither if its vectorizer packs them. Then the last elements
of a row can be rounded differently from the first, and two kernels can differ, depending on the
CPU. So every sum with a product is written as `fma`, with the left product if there are two; a CPU
without such an instruction always rounds twice.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tvm
from tvm import tirx
from tvm.tirx.op import fma

_OPERATOR = "tirx.sparsetrain_multiply_add"
_ATTRIBUTES = {
    "TCallEffectKind": tirx.expr.CallEffectKind.Pure.value,
    "TVectorizable": True,
    "TScriptPrinterName": "sparsetrain_multiply_add",
}


def _register() -> tvm.ir.Op:
    for name, value in _ATTRIBUTES.items():
        tvm.ir.register_op_attr(_OPERATOR, name, value)
    return tvm.ir.Op.get(_OPERATOR)


_multiply_add = _register()


def define_multiply_add(kind: str, meaning: Callable[[Any, Any, Any], Any]) -> None:
    """Define how ``x * y + z`` is computed on a kind of target."""
    tirx.register_intrin_lowering(_OPERATOR, kind, f=lambda call: meaning(*call.args))


define_multiply_add("llvm", fma)


def multiply_add(x: Any, y: Any, z: Any) -> Any:
    """Return ``x * y + z`` as one operation."""
    return tvm.ir.Call(_multiply_add, [x, y, z], ret_ty=x.ty)


def fuse_multiply_adds(value: Any) -> Any:
    """Return the expression with multiply-adds in place of sums that have a product.

    Parameters
    ----------
    value : tirx.Expr
        An expression of floating-point operators; values bound to a name are unchanged.
    """
    rebuild = _REBUILD.get(type(value))
    return value if rebuild is None else rebuild(value)


def _sum(value: tirx.Add) -> Any:
    left, right = fuse_multiply_adds(value.a), fuse_multiply_adds(value.b)
    if not _is_float(value):
        return left + right
    if isinstance(left, tirx.Mul):
        return multiply_add(left.a, left.b, right)
    if isinstance(right, tirx.Mul):
        return multiply_add(right.a, right.b, left)
    return left + right


def _difference(value: tirx.Sub) -> Any:
    left, right = fuse_multiply_adds(value.a), fuse_multiply_adds(value.b)
    if not _is_float(value):
        return left - right
    if isinstance(left, tirx.Mul):
        return multiply_add(left.a, left.b, -right)
    if isinstance(right, tirx.Mul):
        return multiply_add(-right.a, right.b, left)
    return left - right


def _is_float(value: Any) -> bool:
    return str(value.ty.dtype).startswith("float")


def _both(value: Any) -> Any:
    return type(value)(fuse_multiply_adds(value.a), fuse_multiply_adds(value.b))


def _call(value: tvm.ir.Call) -> Any:
    arguments = [fuse_multiply_adds(argument) for argument in value.args]
    return tvm.ir.Call(value.op, arguments, attrs=value.attrs, ret_ty=value.ty)


def _select(value: tirx.Select) -> Any:
    parts = (value.condition, value.true_value, value.false_value)
    return tirx.Select(*map(fuse_multiply_adds, parts))


def _cast(value: tirx.Cast) -> Any:
    return tirx.Cast(value.ty, fuse_multiply_adds(value.value))


_REBUILD: dict[type, Callable[[Any], Any]] = {
    tirx.Add: _sum,
    tirx.Sub: _difference,
    tirx.Cast: _cast,
    tvm.ir.Call: _call,
    tirx.Select: _select,
    tirx.Not: lambda value: tirx.Not(fuse_multiply_adds(value.a)),
    **dict.fromkeys((tirx.Mul, tirx.Div, tirx.Max, tirx.Min, tirx.And, tirx.Or), _both),
    **dict.fromkeys((tirx.LT, tirx.LE, tirx.GT, tirx.GE, tirx.EQ, tirx.NE), _both),
}
