# SPDX-License-Identifier: Apache-2.0
"""Counter-based random bits: a pure function of seed, parameter, step, row and column.

There is no state, so the bits of an element are the same on every thread, in every path of an
update, and after a resume. The host hashes the step into two keys; a kernel mixes them with the row
once, and with the column for each element.

The mixer is `lowbias32` by Chris Wellons, a two-round 32-bit hash found by search,
https://github.com/skeeto/hash-prospector.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from hashlib import blake2b
from typing import Any

from tvm import tirx
from tvm.script.ir_builder import tirx as T

Hold = Callable[[Any], Any]


def uint(number: int) -> Any:
    """Return a uint32 constant."""
    return tirx.const(number, "uint32")


def word(value: Any) -> Any:
    """Return the lowest 32 bits of an integer."""
    return tirx.Cast("uint32", value)


def times(bits: Any, factor: int) -> Any:
    """Return the low 32 bits of a constant times a word, or times an index below 2**32.

    TVM 0.27 assumes that products of unsigned integers do not wrap and that casts keep bounds which
    the type cannot hold, so it would fold a 32-bit product into a wrong constant. A 64-bit product
    does not wrap, and the mask states its bounds. LLVM turns it back into one 32-bit
    multiplication.
    """
    wide = tirx.Cast("uint64", bits) * tirx.const(factor, "uint64")
    return word(wide & tirx.const(0xFFFFFFFF, "uint64"))


def holding(words: Any, place: Any) -> Hold:
    """Return a function that stores a word in an element of a local array and loads it.

    TVM 0.27 repeats a bound expression at each use, unless it reads memory. A hash of nine steps,
    where each uses the previous one twice, became 80 times as long and took a second to compile. A
    value stored in an array is computed once, and LLVM keeps it in a register.
    """

    def hold(value: Any) -> Any:
        T.buffer_store(words, value, [place])
        return words[place]

    return hold


Keys = tuple[int, int]

FIRST, SECOND = 0x7FEB352D, 0x846CA68B
GOLDEN = 0x9E3779B9  # 2**32 / golden ratio: spreads neighbouring columns


def keys_of(seed: int, parameter: str, step: int) -> Keys:
    """Return two numbers below 2**32 for one step of one parameter."""
    digest = blake2b(f"{seed}/{step}/{parameter}".encode(), digest_size=8).digest()
    return int.from_bytes(digest[:4], "little"), int.from_bytes(digest[4:], "little")


def row_bits(keys: Sequence[Any], row: Any, hold: Hold) -> Any:
    """Emit the hash (uint32) of a row (int64), stored in the word of `hold`."""
    low, high = word(row & tirx.const(0xFFFFFFFF, "int64")), word(row >> tirx.const(32, "int64"))
    return hold(_mixed(low ^ word(keys[0]), hold) ^ high ^ word(keys[1]))


def element_bits(shared: Any, column: Any, hold: Hold) -> Any:
    """Emit the 32 random bits of an element, from `row_bits` and its column.

    They are valid until the next call; `hold` must use a different word than the row.
    """
    return _mixed(shared ^ times(column, GOLDEN), hold)


def _mixed(bits: Any, hold: Hold) -> Any:
    bits = hold(bits)
    bits = hold(times(bits ^ (bits >> 16), FIRST))
    bits = hold(times(bits ^ (bits >> 15), SECOND))
    return bits ^ (bits >> 16)
