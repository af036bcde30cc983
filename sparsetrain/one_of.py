# SPDX-License-Identifier: Apache-2.0
"""One of several arrays, chosen while a kernel runs: LLVM IR that the kernel imports by a pragma.

A loop over arrays that are treated alike then has one body; with a body for each, the code that TVM
and LLVM have to compile grows with their number. TVM cannot choose between addresses, hence the
helper; the call is always inlined.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import reduce
from typing import Any

from tvm import tirx
from tvm.script.ir_builder import tirx as T

from sparsetrain.transpose import PRAGMA

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
    extents = zip(*(array.shape for array in arrays), strict=True)
    shape = tuple(_extent(each, number) for each in extents)
    memory = T.Bind(_chosen([array.data for array in arrays], number, _either))
    return T.decl_buffer(shape, arrays[0].dtype, data=memory)


def number_of(values: Sequence[Any], number: Any) -> Any:
    """The value of this number, as int64."""
    wide = [tirx.Cast("int64", tirx.convert(value)) for value in values]
    return T.Bind(_chosen(wide, number, tirx.Select))


def _extent(extents: Sequence[Any], number: Any) -> Any:
    known = {int(n) if isinstance(n, (int, tirx.IntImm)) else None for n in extents}
    return number_of(extents, number) if None in known or len(known) > 1 else known.pop()


def _chosen(values: Sequence[Any], number: Any, choose: Callable[..., Any]) -> Any:
    """The first value, unless `number` is the place of a later one."""
    later = enumerate(values[1:], 1)
    return reduce(lambda rest, each: choose(number == each[0], each[1], rest), later, values[0])


def _either(is_one: Any, one: Any, other: Any) -> Any:
    flag = tirx.Cast("int64", is_one)
    return tirx.call_extern(one.ty, "sparsetrain_either", flag, one, other)
