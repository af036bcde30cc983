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
