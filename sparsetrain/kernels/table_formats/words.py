# SPDX-License-Identifier: Apache-2.0
"""32-bit words inside kernels."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tvm import tirx
from tvm.script.ir_builder import tirx as T

Hold = Callable[[Any], Any]


def uint(number: int) -> Any:
    """A constant."""
    return tirx.const(number, "uint32")


def word(value: Any) -> Any:
    """The lowest 32 bits of an integer."""
    return tirx.Cast("uint32", value)


def times(bits: Any, factor: int) -> Any:
    """The lowest 32 bits of the product of a word, or of an index below 2**32, and a constant.

    TVM 0.27 takes products of unsigned integers not to wrap, and a cast to keep bounds that the
    type cannot: it would fold what is computed from one of 32 bits into another constant. In 64
    bits the product does not wrap, and the mask tells the bounds. LLVM finds back to one
    multiplication of 32 bits.
    """
    wide = tirx.Cast("uint64", bits) * tirx.const(factor, "uint64")
    return word(wide & tirx.const(0xFFFFFFFF, "uint64"))


def holding(words: Any, place: Any) -> Hold:
    """A function that puts a word into an element of a local array, and gives that to be read.

    TVM 0.27 writes a bound value out wherever it is used, unless memory was read for it: a hash of
    nine steps, each of which uses the last one twice, became 80 times as long and took a second to
    compile. What lies in an array is computed once. LLVM makes a register of it.
    """

    def hold(value: Any) -> Any:
        T.buffer_store(words, value, [place])
        return words[place]

    return hold
