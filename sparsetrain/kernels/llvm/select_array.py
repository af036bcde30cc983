# SPDX-License-Identifier: Apache-2.0
"""One of several arrays, chosen while a kernel runs: LLVM IR that the kernel imports by a pragma.

A loop over arrays that are treated alike then has one body; with a body for each, the code that TVM
and LLVM have to compile grows with their number. TVM cannot choose between addresses, hence the
helper; the call is always inlined.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import reduce
from typing import Any

from tvm import tirx
from tvm.script.ir_builder import tirx as T

from sparsetrain.kernels.llvm.transpose import PRAGMA

HELPER = """
define linkonce_odr ptr @sparsetrain_either(i64 %first, ptr %a, ptr %b) alwaysinline nounwind {
  %is_first = icmp ne i64 %first, 0
  %chosen = select i1 %is_first, ptr %a, ptr %b
  ret ptr %chosen
}
"""


@contextmanager
def each_in_turn(count: int) -> Iterator[Any]:
    """Inside a kernel: a loop over the numbers below `count`, by which to choose."""
    with T.attr(T.int32(0), PRAGMA, HELPER), T.serial(0, count) as number:
        yield number


def one_of(arrays: Sequence[Any], number: Any) -> Any:
    """The array of this number, in memory and in shape; all have one dtype and number of axes."""
    first = arrays[0]
    extents = zip(*(array.shape for array in arrays), strict=True)
    shape = tuple(_extent(each, number) for each in extents)
    later = enumerate((array.data for array in arrays[1:]), 1)
    memory = reduce(lambda rest, each: _either(number == each[0], each[1], rest), later, first.data)
    return T.decl_buffer(shape, first.dtype, data=T.Bind(memory))


def number_of(values: Sequence[Any], number: Any) -> Any:
    """The value of this number, as int64.

    From memory: with a choice in every index, TVM's simplifier took seconds.
    """
    stored = T.alloc_local((len(values),), "int64")
    for place, value in enumerate(values):
        T.buffer_store(stored, tirx.Cast("int64", tirx.convert(value)), [place])
    return T.Bind(stored[number])


def _extent(extents: Sequence[Any], number: Any) -> Any:
    known = {int(n) if isinstance(n, (int, tirx.IntImm)) else None for n in extents}
    return number_of(extents, number) if None in known or len(known) > 1 else known.pop()


def _either(is_one: Any, one: Any, other: Any) -> Any:
    flag = tirx.Cast("int64", is_one)
    return tirx.call_extern(one.ty, "sparsetrain_either", flag, one, other)
