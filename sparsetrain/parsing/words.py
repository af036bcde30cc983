# SPDX-License-Identifier: Apache-2.0
"""Up to 8 characters of text as one 64-bit number, so that kernels read all digits together.

Functions take one such word, or several in lanes. The first character is the lowest byte.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tvm import tirx
from tvm.script.ir_builder import tirx as T
from tvm.tirx import const

LANES = 8  # fields that are read together
ZERO = ord("0")


def variable(dtype: str, value: Any = 0, lanes: int = 1) -> Any:
    """Allocate a local variable with one number per lane."""
    variable = T.alloc_local((lanes,), dtype)
    T.buffer_store(variable, constant(value, dtype, lanes), [all_lanes(lanes)])
    return variable


@contextmanager
def when(condition: Any) -> Iterator[None]:
    """Emit a block that runs if the condition holds."""
    with T.If(condition), T.Then():
        yield


def int32(value: int) -> Any:
    """Return a constant int32."""
    return const(value, "int32")


def all_lanes(lanes: int) -> Any:
    """Return the index of all lanes of a local variable."""
    return tirx.Ramp(0, 1, lanes) if lanes > 1 else 0


def constant(value: Any, dtype: str, lanes: int) -> Any:
    """Return the same number in each lane."""
    number = const(value, dtype) if isinstance(value, int) else value
    return tirx.Broadcast(number, lanes) if lanes > 1 else number


def cast(dtype: str, value: Any, lanes: int) -> Any:
    """Cast the value of each lane."""
    return tirx.Cast(f"{dtype}x{lanes}" if lanes > 1 else dtype, value)


def bind_lanes(value: Any, dtype: str, lanes: int = LANES) -> Any:
    """Bind a value; a vector is stored in a local array, as TVM's analyzer refuses `T.Bind`."""
    if lanes == 1:
        return T.Bind(value)
    variable = T.alloc_local((lanes,), dtype)
    T.buffer_store(variable, value, [all_lanes(lanes)])
    return variable[all_lanes(lanes)]


def uint64(number: int) -> Any:
    """Return a constant uint64."""
    return const(number, "uint64")


def same_bytes(byte: int) -> Any:
    """Return a number with 8 equal bytes."""
    return uint64(byte * 0x0101010101010101)


# Unsigned overflow of 64 bits is undefined in TVM's code, so bytes are added without their high
# bits.
def at_least(chars: Any, byte: int) -> Any:
    """Return the high bit of each byte, set if the byte's lower bits are at least `byte`."""
    return (chars & same_bytes(0x7F)) + same_bytes(0x80 - byte)


def are_hex(chars: Any) -> Any:
    """Whether 8 bytes are lower-case hex digits."""
    digits = at_least(chars, ord("0")) & ~at_least(chars, ord("9") + 1)
    letters = at_least(chars, ord("a")) & ~at_least(chars, ord("f") + 1)
    return ((digits | letters) & ~chars & same_bytes(0x80)) == same_bytes(0x80)


def is_hex_alone(chars: Any) -> Any:
    """Whether 8 hex digits are not a decimal number: they have a letter, or begin with 0."""
    letters = (chars & same_bytes(0x40)) != uint64(0)
    return tirx.Or(letters, (chars & uint64(0xFF)) == uint64(ZERO))


def hex_digits(chars: Any) -> Any:
    """Return the values of 8 hex digits, a byte each."""
    return (chars & same_bytes(0x0F)) + ((chars >> uint64(6)) & same_bytes(1)) * uint64(9)


def are_decimal(digits: Any) -> Any:
    """Whether 8 bytes are below 10."""
    return ((digits | at_least(digits, 10)) & same_bytes(0x80)) == uint64(0)


def behind_zeros(digits: Any, count: Any, lanes: int = 1) -> Any:
    """Move the first `count` of 8 digits to the end, after zeros; the first is the lowest byte."""
    return digits << cast("uint64", (64 - 8 * count) & 63, lanes)


def joined(x: Any, base: int, lanes: int = 1) -> Any:
    """Join 8 digits, a byte each, into one number, by pairs: 4, then 2, then 1."""
    for bits, mask in ((8, 0x00FF00FF00FF00FF), (16, 0x0000FFFF0000FFFF), (32, 0x00000000FFFFFFFF)):
        x = bind_lanes((x * uint64(base) + (x >> uint64(bits))) & uint64(mask), "uint64", lanes)
        base *= base
    return x
