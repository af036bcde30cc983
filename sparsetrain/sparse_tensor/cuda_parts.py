# SPDX-License-Identifier: Apache-2.0
"""Parts that CUDA kernels share: arguments, launches, barriers, sums over a block's threads."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tvm import tirx
from tvm.script.ir_builder import IRBuilder
from tvm.script.ir_builder import tirx as T
from tvm.tirx import PrimFunc

from sparsetrain.relax_op import SCHEDULED, THREADS


class Built:
    """The function under construction; `get` when its `with` block is over."""

    def __init__(self, builder: IRBuilder) -> None:
        self._builder = builder

    def get(self) -> PrimFunc:
        """The finished function."""
        return self._builder.get()


@contextmanager
def kernels(name: str) -> Iterator[Built]:
    """Begin a function of one launch or several, one after another, that no pass rewrites."""
    with IRBuilder() as builder, T.prim_func(is_private=True, s_tir=True):
        T.func_name(name)
        T.func_attr(SCHEDULED)
        yield Built(builder)


def extents(count: int) -> tuple[Any, ...]:
    """Symbols for lengths."""
    return tuple(T.int64() for _ in range(count))


def argument(name: str, shape: tuple[Any, ...], dtype: str) -> Any:
    """An array argument."""
    return T.match_buffer(T.arg(name, T.handle()), shape, dtype)


@contextmanager
def blocks_of_threads(blocks: Any, threads: int = THREADS) -> Iterator[tuple[Any, Any]]:
    """Launch at least one block; yields the block's and the thread's number, both int64."""
    count = tirx.max(tirx.Cast("int64", blocks), tirx.const(1, "int64"))
    zero = tirx.const(0, "int64")
    with (
        T.thread_binding(zero, count, thread="blockIdx.x") as block,
        T.thread_binding(zero, tirx.const(threads, "int64"), thread="threadIdx.x") as thread,
    ):
        yield block, thread


@contextmanager
def each_of(total: Any) -> Iterator[Any]:
    """A thread for each number below `total`; yields it."""
    with blocks_of_threads(tirx.ceildiv(total, THREADS)) as (block, thread):
        number = T.Bind(block * THREADS + thread)
        with T.If(number < total), T.Then():
            yield number


def barrier() -> None:
    """Wait for the threads of the block; what they wrote to shared memory can be read."""
    T.evaluate(tirx.call_intrin("int32", "tirx.tvm_storage_sync", "shared"))


def shared(count: int, dtype: str = "int32") -> Any:
    """An array of the block. Of one axis: TVM closes gaps that it sees between rows."""
    return T.alloc_buffer((count,), dtype, scope="shared")


class Number:
    """A number of the thread that changes."""

    def __init__(self, dtype: str = "int32", start: int = 0) -> None:
        self.dtype = dtype
        self._place = T.alloc_local((1,), dtype)
        self.set(tirx.const(start, dtype))

    @property
    def now(self) -> Any:
        """Its value."""
        return self._place[0]

    def set(self, value: Any) -> None:
        """Give it another value."""
        T.buffer_store(self._place, value, [0])

    def add(self, value: Any) -> None:
        """Add to it."""
        self.set(self.now + value)


def sum_before(sums: Any, thread: Any, mine: Any, threads: int) -> Any:
    """The sum of what the threads before this one gave; `sums` then holds those up to each.

    A scan in shared memory, doubling the distance each time; all threads must come here.
    """
    T.buffer_store(sums, mine, [thread])
    distance = 1
    while distance < threads:
        barrier()
        other = Number()
        with T.If(thread >= distance), T.Then():
            other.set(sums[thread - distance])
        barrier()
        T.buffer_store(sums, sums[thread] + other.now, [thread])
        distance *= 2
    barrier()
    before = Number()
    with T.If(thread > 0), T.Then():
        before.set(sums[thread - 1])
    barrier()  # whoever writes `sums` again, or what TVM puts in its place, may
    return before
