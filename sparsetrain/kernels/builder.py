# SPDX-License-Identifier: Apache-2.0
"""Builder for kernels, from TVMScript or Python functions.

Everything that TVM's builder emits inside a ``with kernel()`` block belongs to the kernel, even in
called functions. So parts of a kernel can be Python functions, and Python loops are unrolled.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from itertools import count as count_up
from typing import Any, NamedTuple

from tvm import DataType, tirx
from tvm.script.ir_builder import IRBuilder
from tvm.script.ir_builder import tirx as T
from tvm.script.parser.core.entry import parse
from tvm.script.parser.core.utils import inspect_function_capture

# Tells FuseOps and the schedule rules to leave a finished kernel unchanged.
SCHEDULED = {"tirx.noalias": True, "tirx.is_scheduled": True, "op_pattern": 8}

LINE_BYTES = 64  # bytes of a cache line

# Numbers for unique symbol names of the kernel that is being built.
_numbers: ContextVar[Iterator[int]] = ContextVar("numbers")


def prim_func(*, s_tir: bool = False, private: bool = False) -> Callable[[Callable], Any]:
    """Parse a kernel like `T.prim_func`, in half the time, if annotations name only globals.

    TVM's version looks up the source line of every caller, twice per kernel, to resolve annotations
    that name locals.
    """

    def parsed(function: Callable) -> Any:
        return parse(function, inspect_function_capture(function))

    parsed.dispatch_token = "tirx"  # type: ignore[attr-defined]  # noqa: S105  # of the parser
    return parsed


@contextmanager
def kernel(name: str = "kernel") -> Iterator[IRBuilder]:
    """Begin a kernel that no pass rewrites; on a device it has one launch or several.

    Yields an object whose `get` returns the finished function after the block.
    """
    _numbers.set(count_up())
    with IRBuilder() as builder, T.prim_func(is_private=True, s_tir=True):
        T.func_name(name)
        T.func_attr(SCHEDULED)
        yield builder


def extents(count: int) -> tuple[Any, ...]:
    """Declare symbols for lengths.

    Each needs a unique name: TVM prints variables with equal names in the order of their memory
    addresses, and the cache looks up a program by its text.
    """
    numbers = _numbers.get()
    return tuple(IRBuilder.name(f"n{next(numbers)}", T.int64()) for _ in range(count))


def buffer(name: str, shape: tuple[Any, ...], dtype: str) -> Any:
    """Declare an array argument."""
    return IRBuilder.name(name, T.match_buffer(T.arg(name, T.handle()), shape, dtype))


def pointer(name: str, dtype: str) -> Any:
    """Declare an address as an argument."""
    return T.arg(name, T.handle(dtype, "global"))


def scalar(name: str, dtype: str) -> Any:
    """Declare a number as an argument."""
    kinds = {"float32": T.float32, "float64": T.float64, "int64": T.int64, "int32": T.int32}
    return T.arg(name, kinds[dtype]())


def counter(value: Any = 0) -> Any:
    """Declare a thread-local int32, initially `value`."""
    number = T.alloc_local((1,), "int32")
    put(number, tirx.const(value, "int32") if isinstance(value, int) else value)
    return number


def put(number: Any, value: Any) -> None:
    """Set the value of a `counter`."""
    T.buffer_store(number, value, [0])


class Prefetch(NamedTuple):
    """A prefetch of a cache line.

    Parameters
    ----------
    write : bool
        Whether the line will be written.
    near : int
        Cache level: 3 for L1, 2 for L2.
    """

    write: bool
    near: int

    def line(self, array: Any, index: list[Any]) -> None:
        """Prefetch the line of an element."""
        address = T.address_of(array[tuple(index)])
        hints = int(self.write), self.near, 1
        T.evaluate(tirx.call_intrin("void", "tirx.prefetch", address, *hints))


def line_length(dtype: Any) -> int:
    """Return how many numbers a cache line holds."""
    return LINE_BYTES // DataType(str(dtype)).itemsize


def line_starts(array: Any, most: int) -> list[int]:
    """Return the columns at which to prefetch the first `most` cache lines of a row.

    A row of bytes can begin anywhere in a cache line, and its scale is at the end, so the last
    column is prefetched too.
    """
    step, columns = line_length(array.dtype), int(array.shape[1])
    starts = [*range(0, min(columns, most * step), step)]
    return [*starts, columns - 1] if step == LINE_BYTES else starts
