# SPDX-License-Identifier: Apache-2.0
"""Rows in half precision: converted exactly to float32, rounded stochastically on writes.

Kernels convert the numbers as 16-bit integers, to the same bits on every target.

`narrowed` adds random bits below the last bit that is kept and truncates: a number becomes one of
its two neighbours, the nearer one more often, so that the mean is the number. Numbers that the
format can hold never change. Of 32 random bits, only the upper ones are used; ``2**31`` in their
place rounds to nearest. Numbers beyond the largest finite one become infinity, never at random; NaN
stays NaN, and becomes quiet. Below its smallest normal number, float16 has steps of one size, and
20 random bits decide. Everything is integer arithmetic except two multiplications by a power of
two.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
from tvm import tirx
from tvm.script.ir_builder import tirx as T

from sparsetrain.kernels.table_formats.format import TableFormat
from sparsetrain.kernels.table_formats.noise import uint, word
from sparsetrain.kernels.table_formats.rows import PlainRow

BITS = "uint16"  # dtype of a half inside kernels
MAGNITUDE, INFINITE = 0x7FFF_FFFF, 0x7F80_0000  # of a float32


def widened(bits: Any, dtype: str) -> Any:
    """Convert the 16 bits of a `dtype` number to float32."""
    return _WIDENED[dtype](word(bits))


def narrowed(value: Any, random: Any, dtype: str) -> Any:
    """Round a float32 to the 16 bits of a `dtype` number, by 32 random bits."""
    bits = T.reinterpret("uint32", T.Bind(value))
    size = bits & MAGNITUDE
    rounded, largest, infinite, nan = _NARROWED[dtype](size, random)
    special = tirx.Select(size > uint(INFINITE), nan, uint(infinite))
    kept = tirx.Select(size > uint(largest), special, rounded)
    return tirx.Cast(BITS, ((bits >> 16) & 0x8000) | kept)


def _widened_bfloat16(bits: Any) -> Any:
    return T.reinterpret("float32", bits << 16)


def _widened_float16(bits: Any) -> Any:
    """Convert float16 bits; their exponent has a bias of 15, float32's of 127."""
    size = T.Bind((bits & 0x7FFF) << 13)
    # A denormal with the exponent of the smallest normal number is 2**-14 too large.
    tiny = T.reinterpret("float32", size + uint(0x3880_0000)) - tirx.const(2.0**-14, "float32")
    normal = T.reinterpret("float32", size + uint(112 << 23))
    finite = tirx.Select(size < uint(1 << 23), tiny, normal)
    special = T.reinterpret("float32", size | INFINITE)
    wide = T.reinterpret("uint32", tirx.Select(size < uint(0x1F << 23), finite, special))
    return T.reinterpret("float32", wide | ((bits & 0x8000) << 16))


def _narrowed_bfloat16(size: Any, random: Any) -> tuple[Any, int, int, Any]:
    return (size + (random >> 16)) >> 16, 0x7F7F_0000, 0x7F80, (size >> 16) | 0x7FC0


def _narrowed_float16(size: Any, random: Any) -> tuple[Any, int, int, Any]:
    smallest = uint(0x3880_0000)  # 2**-14, the smallest normal number
    rebiased = tirx.max(size, smallest) - uint(112 << 23)
    normal = (rebiased + (random >> 19)) >> 13
    # Denormals are multiples of 2**-24; 20 more bits are kept to add the random ones.
    near = T.reinterpret("float32", tirx.min(size, smallest)) * tirx.const(2.0**44, "float32")
    fixed = word(tirx.Cast("int32", near))
    tiny = (fixed + (random >> 12)) >> 20
    nan = ((size >> 13) & 0x3FF) | 0x7E00
    return tirx.Select(size < smallest, tiny, normal), 0x477F_E000, 0x7C00, nan


_WIDENED: dict[str, Callable[[Any], Any]] = {
    "bfloat16": _widened_bfloat16,
    "float16": _widened_float16,
}
# (magnitude bits, random bits) -> rounded bits, float32 bits of the largest finite half, bits of
# infinity, bits of NaN.
_NARROWED: dict[str, Callable[[Any, Any], tuple[Any, int, int, Any]]] = {
    "bfloat16": _narrowed_bfloat16,
    "float16": _narrowed_float16,
}


class HalfRow(PlainRow):
    """A row in half precision."""

    def read(self, column: Any) -> Any:
        """Read one weight."""
        return T.Bind(widened(super().read(column), self.parameter.stored.dtype))

    def begin(self) -> None:
        """Prepare to write."""
        self._bits = self._noise()

    def write(self, column: Any, value: Any) -> None:
        """Store one weight, rounded."""
        random = self._bits.at(column)
        super().write(column, narrowed(value, random, self.parameter.stored.dtype))


def _element(table: Any, row: Any, column: Any) -> Any:
    return widened(T.reinterpret(BITS, table[row, column]), str(table.dtype))


HALVES = {
    name: TableFormat(name, dtype, "float32", BITS, rounded=True, element=_element, row=HalfRow)
    for name, dtype in (
        ("bfloat16", np.dtype(ml_dtypes.bfloat16)),
        ("float16", np.dtype(np.float16)),
    )
}
