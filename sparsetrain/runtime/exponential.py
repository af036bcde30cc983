# SPDX-License-Identifier: Apache-2.0
"""Vectorized exp of float32 on a CPU, as inline arithmetic; sigmoid and tanh use it.

TVM calls the C library for every number, which takes 3 ns; a core could compute eight numbers in
that time. Here ``exp(x) = 2^n exp(r)`` with integer n and ``|r| <= ln(2) / 2``; a polynomial of
degree 6 gives ``exp(r)`` to 3e-9. The relative error of the result is below 2^-23; infinities, NaN,
overflow and underflow give the results of the C library.

Invariant: vectors and loop tails use one formula with explicit fused multiply-adds, so an element's
bits do not depend on its position.

TVM has one table of lowerings for the whole process. Outside of `inline_exp` the entry registered
here behaves as TVM's own.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import tvm
from tvm import tirx
from tvm.tirx.op import fma

_TABLE = "llvm.FLowerIntrinsic"
# Beyond these exp is 0 or infinite.
_LOWEST, _HIGHEST = -105.0, 89.0
_LOG2_E = 1.4426950408889634
# ln(2) as a sum of two parts; the first has few enough bits that its product with n is exact.
_LN2_HIGH, _LN2_LOW = 0.693359375, -2.12194440e-4
# exp(r) = 1 + r + r^2 p(r): coefficients of p from the highest power, with the least maximum
# relative error for |r| <= ln(2) / 2.
_COEFFICIENTS = (0.00138145988, 0.00836871658, 0.0416683890, 0.166665211, 0.49999994)
# Adding this to a number below 2^22 leaves the nearest integer in the low bits.
_ROUNDER = 1.5 * 2.0**23
_ROUNDER_BITS = 0x4B400000
_EXPONENT_BIAS, _MANTISSA_BITS = 127, 23

_is_inline: ContextVar[bool] = ContextVar("inline exp", default=False)


@contextmanager
def inline_exp() -> Iterator[None]:
    """Lower exp of float32 to inline arithmetic, in this thread, during the block."""
    before = _is_inline.set(True)
    try:
        yield
    finally:
        _is_inline.reset(before)


def exponential(x: Any) -> Any:
    """Return ``e ** x`` for a float32 expression, scalar or vector."""

    def number(value: float) -> Any:
        return tirx.const(value, str(x.ty.dtype))

    # In this order a comparison with NaN fails and selects NaN.
    inside = tirx.Var("inside", x.ty), tirx.min(number(_HIGHEST), tirx.max(number(_LOWEST), x))
    clamped = inside[0]
    rounded = tirx.Var("rounded", x.ty)
    n = rounded - number(_ROUNDER)
    remainder = tirx.Var("remainder", x.ty)
    high = fma(n, number(-_LN2_HIGH), clamped)
    total = number(_COEFFICIENTS[0])
    for coefficient in _COEFFICIENTS[1:]:
        total = fma(total, remainder, number(coefficient))
    total = fma(total, remainder * remainder, remainder) + number(1)
    scaled = total
    for factor in _powers_of_two(rounded):
        scaled = scaled * factor
    value = tirx.Let(remainder, fma(n, number(-_LN2_LOW), high), scaled)
    value = tirx.Let(rounded, fma(clamped, number(_LOG2_E), number(_ROUNDER)), value)
    return tirx.Let(*inside, value)


def _powers_of_two(rounded: Any) -> list[Any]:
    """Return two factors of 2^n, since 2^n itself may overflow or underflow."""
    lanes = tvm.DataType(str(rounded.ty.dtype)).lanes
    dtype = "int32" if lanes == 1 else f"int32x{lanes}"

    def whole(value: int) -> Any:
        return tirx.const(value, dtype)

    n = tirx.reinterpret(dtype, rounded) - whole(_ROUNDER_BITS)
    half = n >> whole(1)
    return [
        tirx.reinterpret(
            str(rounded.ty.dtype), (part + whole(_EXPONENT_BIAS)) << whole(_MANTISSA_BITS)
        )
        for part in (half, n - half)
    ]


def _register() -> None:
    stock = tvm.ir.Op.get("tirx.exp").get_attr(_TABLE)

    def lowered(call: Any) -> Any:
        x = call.args[0]
        is_single = str(x.ty.dtype).partition("x")[0] == "float32"
        return exponential(x) if is_single and _is_inline.get() else stock(call)

    tirx.register_intrin_lowering("tirx.exp", "llvm", f=lowered, level=11)


_register()
