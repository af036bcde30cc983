# SPDX-License-Identifier: Apache-2.0
"""CUDA kernels for whole arrays, several in one launch: updates, search for NaN, sums.

Each array has its own thread blocks. There are no atomic operations, so every run gives the same
bits.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from tvm import tirx
from tvm.script.ir_builder import tirx as T
from tvm.tirx import PrimFunc

from sparsetrain.backends.cuda.sparse.parts import THREADS, barrier, blocks_of_threads, each_of
from sparsetrain.backends.cuda.update.update_kernels import dense_rows
from sparsetrain.kernels.builder import buffer, extents, kernel, scalar
from sparsetrain.kernels.loops import Number
from sparsetrain.optim.update.dense_kernel import as_rows, declare_arguments
from sparsetrain.tables.formula import KernelSpec
from sparsetrain.tables.kernel_parts import Parameter, scalars

EACH = 16  # elements per thread


def foreach_kernel(spec: KernelSpec, dtype: str, ranks: Sequence[int]) -> PrimFunc:
    """Return the kernel that updates whole parameters of one dtype.

    Arguments: gradient, weight and slots of each parameter, in their own shapes, then the scalars.
    """
    with kernel() as built:
        arrays = [declare_arguments(spec, dtype, rank) for rank in ranks]
        h = scalars(spec, dtype)
        _update_all([as_rows(spec, *each) for each in arrays], h)
    return built.get()


def _update_all(seen: Sequence[tuple[Parameter, Any]], h: Any) -> None:
    """Emit one launch for all parameters, or one each if rows share values (`Formula.by_row`)."""
    if seen[0][0].spec.formula.by_row:
        for parameter, gradient in seen:
            dense_rows(parameter, gradient, h, tirx.const(0, "int64"), parameter.weight.shape[0])
        return
    with _each_array([gradient.shape[1] for _, gradient in seen]) as branches:
        for branch, (parameter, gradient) in zip(branches, seen, strict=True):
            with branch as place:
                here = gradient[0, place]
                # A formula without `by_row` reads only the element that it updates.
                state = parameter.begin_row(tirx.const(0, "int64"), _nothing, h)
                state.update(place, here)


def _nothing(_column: Any) -> Any:
    raise AssertionError("a formula without a part for each row reads no other element")


def search_all(arrays: Sequence[Any], found: Any) -> None:
    """Emit code that marks in ``found[:, 0]`` which of K arrays (1, n) contain NaN or infinity."""
    count, strips = (int(extent) for extent in found.shape)
    with each_of(tirx.const(count * strips, "int64")) as number:
        place = [tirx.floordiv(number, strips), tirx.floormod(number, strips)]
        T.buffer_store(found, tirx.const(0, "int32"), place)
    with _each_array([array.shape[1] for array in arrays], again=True) as branches:
        bad = Number()
        for number, (branch, array) in enumerate(zip(branches, arrays, strict=True)):
            # The store comes after the loop, so that the thread's reads are independent.
            with branch as place:
                bad.set(tirx.bitwise_or(bad.now, _is_not_finite(array[0, place])))
            with T.If(bad.now != 0), T.Then():
                # Many threads may write here; they all write 1.
                T.buffer_store(found, tirx.const(1, "int32"), [number, 0])
                bad.set(tirx.const(0, "int32"))


def _is_not_finite(value: Any) -> Any:
    """Test if all exponent bits are 1; the compiler could optimize away a comparison with NaN."""
    wide = str(value.ty.dtype) == "float64"
    kind, exponent = ("uint64", 0x7FF0000000000000) if wide else ("uint32", 0x7F800000)
    bound = T.Bind(value)
    mask = tirx.const(exponent, kind)
    return tirx.Cast("int32", tirx.bitwise_and(tirx.reinterpret(kind, bound), mask) == mask)


@contextmanager
def _each_array(sizes: Sequence[Any], again: bool = False) -> Iterator[list[Any]]:
    """Launch threads for all elements of several arrays; yield a context manager for each array.

    The context manager yields an index, and the code in its block runs once per element. With
    `again`, threads past the end repeat the last element instead of branching.
    """
    per_block = THREADS * EACH
    counts = [tirx.ceildiv(size, per_block) for size in sizes]

    @contextmanager
    def branch(number: int, first: Number, block: Any, thread: Any) -> Iterator[Any]:
        inside = tirx.And(block >= first.now, block < first.now + counts[number])
        with T.If(inside), T.Then(), T.serial(0, EACH) as step:
            place = T.Bind((block - first.now) * per_block + step * THREADS + thread)
            if again:
                yield T.Bind(tirx.min(place, sizes[number] - 1))
            else:
                with T.If(place < sizes[number]), T.Then():
                    yield place
        first.add(counts[number])

    with blocks_of_threads(sum(counts, tirx.const(0, "int64"))) as (block, thread):
        # The first block of each array is computed at run time: TVM would take seconds to simplify
        # the sum of a dozen lengths.
        first = Number("int64")
        yield [branch(number, first, block, thread) for number in range(len(sizes))]


def scale_kernel(dtype: str, add: bool) -> PrimFunc:
    """Return the kernel ``out[first + n] = weight * values[n]``, or ``+=`` if `add`."""
    with kernel() as built:
        size, room = extents(2)
        values, out = buffer("values", (size,), dtype), buffer("out", (room,), dtype)
        weight, first = scalar("weight", dtype), scalar("first", "int64")
        with each_of(size) as n:
            value = values[n] * weight
            T.buffer_store(out, out[first + n] + value if add else value, [first + n])
    return built.get()


def squares_kernel(dtype: str) -> PrimFunc:
    """Return the kernel that sums the squares of each 1024 elements of an array, in float64."""
    size_of_block = 1024
    with kernel() as built:
        (size,) = extents(1)
        values = buffer("values", (size,), dtype)
        partial = buffer("partial", (tirx.ceildiv(size, size_of_block),), "float64")
        with blocks_of_threads(tirx.ceildiv(size, size_of_block)) as (block, thread):
            sums = T.alloc_buffer((THREADS,), "float64", scope="shared")
            total = T.alloc_local((1,), "float64")
            T.buffer_store(total, tirx.const(0, "float64"), [0])
            with T.serial(0, size_of_block // THREADS) as step:
                place = T.Bind(block * size_of_block + step * THREADS + thread)
                with T.If(place < size), T.Then():
                    value = T.Bind(tirx.Cast("float64", values[place]))
                    T.buffer_store(total, total[0] + value * value, [0])
            _add_up(sums, total[0], thread)
            with T.If(tirx.And(thread == 0, block * size_of_block < size)), T.Then():
                T.buffer_store(partial, sums[0], [block])
    return built.get()


def _add_up(sums: Any, own: Any, thread: Any) -> None:
    """Store in ``sums[0]`` the sum over a block's threads, in a fixed order."""
    T.buffer_store(sums, own, [thread])
    half = THREADS // 2
    while half:
        barrier()
        with T.If(thread < half), T.Then():
            T.buffer_store(sums, sums[thread] + sums[thread + half], [thread])
        half //= 2


def total_kernel(dtype: str) -> PrimFunc:
    """Return the kernel that stores the sum of `values` in ``out[place]``, in a fixed order."""
    with kernel() as built:
        size, room = extents(2)
        values, out = buffer("values", (size,), dtype), buffer("out", (room,), dtype)
        place = scalar("place", "int64")
        with blocks_of_threads(tirx.const(1, "int64")) as (_, thread):
            sums = T.alloc_buffer((THREADS,), dtype, scope="shared")
            total = Number(dtype)
            with T.serial(0, tirx.ceildiv(size, THREADS)) as turn:
                at = T.Bind(turn * THREADS + thread)
                with T.If(at < size), T.Then():
                    total.add(values[at])
            _add_up(sums, total.now, thread)
            with T.If(thread == 0), T.Then():
                T.buffer_store(out, sums[0], [place])
    return built.get()
