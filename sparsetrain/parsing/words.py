# SPDX-License-Identifier: Apache-2.0
"""Up to 8 characters of text as one 64-bit number, so that kernels read digits at once.

Functions take one such word, or several in lanes. The first character is the lowest byte.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tvm import tirx
from tvm.script.ir_builder import tirx as T
from tvm.tirx import const

LANES = 8  # fields that are read at once
ZERO = ord("0")


def variable(dtype: str, value: Any = 0, lanes: int = 1) -> Any:
    """A local number, or several, that can be stored to."""
    variable = T.alloc_local((lanes,), dtype)
    T.buffer_store(variable, constant(value, dtype, lanes), [all_lanes(lanes)])
    return variable


@contextmanager
def when(condition: Any) -> Iterator[None]:
    """A block that runs if the condition holds."""
    with T.If(condition), T.Then():
        yield


def int32(value: int) -> Any:
    """A constant int32."""
    return const(value, "int32")


def all_lanes(lanes: int) -> Any:
    """The index of all lanes of a local."""
    return tirx.Ramp(0, 1, lanes) if lanes > 1 else 0


def constant(value: Any, dtype: str, lanes: int) -> Any:
    """The same number in each lane."""
    number = const(value, dtype) if isinstance(value, int) else value
    return tirx.Broadcast(number, lanes) if lanes > 1 else number


def cast(dtype: str, value: Any, lanes: int) -> Any:
    """The value of each lane, cast to a type."""
    return tirx.Cast(f"{dtype}x{lanes}" if lanes > 1 else dtype, value)


def kept(value: Any, dtype: str, lanes: int = LANES) -> Any:
    """As `T.Bind`, which TVM's analyzer refuses for several lanes: they are stored in a local."""
    if lanes == 1:
        return T.Bind(value)
    variable = T.alloc_local((lanes,), dtype)
    T.buffer_store(variable, value, [all_lanes(lanes)])
    return variable[all_lanes(lanes)]


def uint64(number: int) -> Any:
    """A constant uint64."""
    return const(number, "uint64")


def same_bytes(byte: int) -> Any:
    """A number with 8 equal bytes."""
    return uint64(byte * 0x0101010101010101)


# A sum or difference of unsigned numbers that does not fit 64 bits is undefined in TVM's code, so
# bytes are added without their high bits.
def at_least(eight: Any, byte: int) -> Any:
    """The high bit of each byte with lower bits of at least this value."""
    return (eight & same_bytes(0x7F)) + same_bytes(0x80 - byte)


def are_hex(eight: Any) -> Any:
    """Whether 8 bytes are lower-case hex digits."""
    digits = at_least(eight, ord("0")) & ~at_least(eight, ord("9") + 1)
    letters = at_least(eight, ord("a")) & ~at_least(eight, ord("f") + 1)
    return ((digits | letters) & ~eight & same_bytes(0x80)) == same_bytes(0x80)


def is_hex_alone(eight: Any) -> Any:
    """Whether 8 hex digits are no decimal number: a letter is among them, or the first is 0."""
    letters = (eight & same_bytes(0x40)) != uint64(0)
    return tirx.Or(letters, (eight & uint64(0xFF)) == uint64(ZERO))


def hex_digits(eight: Any) -> Any:
    """The values of 8 hex digits, a byte each."""
    return (eight & same_bytes(0x0F)) + ((eight >> uint64(6)) & same_bytes(1)) * uint64(9)


def are_decimal(digits: Any) -> Any:
    """Whether 8 bytes are below 10."""
    return ((digits | at_least(digits, 10)) & same_bytes(0x80)) == uint64(0)


def behind_zeros(digits: Any, count: Any, lanes: int = 1) -> Any:
    """Shift the first digits of a word to its end, with zeros before them; byte 0 is the first."""
    return digits << cast("uint64", (64 - 8 * count) & 63, lanes)


def joined(x: Any, base: int, lanes: int = 1) -> Any:
    """The number of 8 digits, each a byte: 4 of base**2, 2 of base**4, and one."""
    for bits, mask in ((8, 0x00FF00FF00FF00FF), (16, 0x0000FFFF0000FFFF), (32, 0x00000000FFFFFFFF)):
        x = kept((x * uint64(base) + (x >> uint64(bits))) & uint64(mask), "uint64", lanes)
        base *= base
    return x
