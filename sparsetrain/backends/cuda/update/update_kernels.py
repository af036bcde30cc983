# SPDX-License-Identifier: Apache-2.0
"""CUDA kernels of an update rule: touched rows, dense parameters, and catch-up, all in place.

They apply the same `KernelSpec` to the same elements as the CPU's kernels. One thread updates a
vector of four columns of a touched row, or one element of a dense parameter. (`arrays` updates all
dense parameters of a step in one launch.) If the elements of a row share a value (a mean, a per-row
slot), the threads of the row wait at a barrier before any of them writes. Each element has one
writer, and there are no atomic operations: every run gives the same bits.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from tvm import tirx
from tvm.script.ir_builder import tirx as T
from tvm.tirx import PrimFunc

from sparsetrain.backends.cuda.sparse.parts import (
    THREADS,
    barrier,
    blocks_of_threads,
    each_of,
    vector_lanes,
)
from sparsetrain.backends.cuda.sparse.runs import Sums, clear
from sparsetrain.kernels.builder import buffer, extents, kernel, scalar
from sparsetrain.kernels.loops import store_vector
from sparsetrain.kernels.table_formats import format_of
from sparsetrain.optim.update.row_update import Runs
from sparsetrain.tables import replay
from sparsetrain.tables.formula import KernelSpec
from sparsetrain.tables.history import columns
from sparsetrain.tables.kernel_parts import Parameter, is_flat, scalars
from sparsetrain.tables.multiply_add import define_multiply_add

# TVM 0.27 does not lower `tirx.fma` for CUDA. If a lowering is registered, TVM turns every sum of a
# product and a number into an fma, in matrix products too, and computes wrong numbers for some
# vectors. So emit a product and a sum, which nvcc fuses.
define_multiply_add("cuda", lambda x, y, z: x * y + z)


def row_update_kernel(
    spec: KernelSpec, width: int, dtype: str, index_dtype: str, pooled: bool
) -> PrimFunc:
    """Build the in-place update of the rows of a plan's segments [first, end).

    Arguments: rows (U,), order (N,), offsets (U + 1,), source (S,), values (M, D), the sums of
    chunks and of blocks, weight (V, D), one array per slot, the scalars of the step, its
    `Table.marks`, first, end.
    """
    with kernel() as built:
        entries, segments, sources, stored = extents(4)
        rows = buffer("rows", (segments,), index_dtype)
        order = buffer("order", (entries,), "int32")
        offsets = buffer("offsets", (segments + 1,), "int32")
        source = buffer("source", (sources,), "int32")
        values = buffer("values", (stored, width), format_of(dtype).computed)
        runs = Runs(rows, lambda n: order[n], offsets, source if pooled else None, values)
        table, chunk_rows, block_rows = extents(3)
        chunks = buffer("chunks", (chunk_rows, width), values.dtype)
        blocks = buffer("blocks", (block_rows, width), values.dtype)
        parameter = Parameter.declare(spec, table, width, dtype)
        parameter.lanes = vector_lanes(width, dtype)
        h = scalars(spec, dtype)
        first, end = scalar("first", "int64"), scalar("end", "int64")
        sums = Sums(runs.values, chunks, blocks, runs.value_row)
        body = _row_by_row if spec.formula.by_row else _row_by_vectors
        body(parameter, runs, sums, h, (first, end))
    return built.get()


def _row_by_vectors(
    parameter: Parameter, runs: Runs, sums: Sums, h: Any, span: tuple[Any, Any]
) -> None:
    lanes = vector_lanes(parameter.width, parameter.dtype)
    vectors = parameter.width // lanes
    with each_of((span[1] - span[0]) * vectors) as number:
        segment = T.Bind(span[0] + tirx.floordiv(number, vectors))
        column = T.Bind(tirx.floormod(number, vectors) * lanes)
        row = T.Bind(tirx.Cast("int64", runs.rows[segment]))
        # These loads are in flight while entries are summed.
        arrays = [parameter.weight, *parameter.slots]
        near = [T.alloc_local((1, lanes), array.dtype) for array in arrays]
        for array, copy in zip(arrays, near, strict=True):
            store_vector(copy, [0, 0], lanes, partial(_at, array, row, column))
        edges = runs.offsets[segment], runs.offsets[segment + 1]
        total = _sum(sums, lanes, edges, column)
        held = Parameter(parameter.spec, near[0], near[1:], lanes, parameter.stored)
        held.lanes, held.place = parameter.lanes, (row, column)
        state = held.begin_row(0, lambda d: total[d], h, _count(edges, parameter))
        with _each_lane(parameter, lanes) as lane:
            state.update(lane, total[lane])
        for array, copy in zip(arrays, near, strict=True):
            store_vector(array, [row, column], lanes, partial(_at, copy, 0, 0))
        with T.If(column == 0), T.Then():
            parameter.note_step(row, h)


def _each_lane(parameter: Parameter, lanes: int) -> Any:
    """Loop over the columns of a vector: vectorized, or serial if each column is rounded."""
    return (T.vectorized if parameter.lanes == lanes else T.serial)(0, lanes)


def _at(array: Any, row: Any, column: Any, lane: Any) -> Any:
    return array[row, column + lane]


def _row_by_row(
    parameter: Parameter, runs: Runs, sums: Sums, h: Any, span: tuple[Any, Any]
) -> None:
    """Update a few rows per block, with their gradients in shared memory."""
    width = parameter.width
    lanes = vector_lanes(width, parameter.dtype)
    vectors = width // lanes
    members = min(vectors, THREADS)  # threads per row
    held = THREADS // members  # rows per block
    with blocks_of_threads(tirx.ceildiv(span[1] - span[0], held)) as (block, thread):
        gradient = T.alloc_buffer((held, width), parameter.dtype, scope="shared")
        place = T.Bind(tirx.min(tirx.floordiv(thread, members), held - 1))
        member = T.Bind(thread - place * members)
        wanted = T.Bind(span[0] + block * held + place)
        works = tirx.And(member < members, wanted < span[1])
        # All threads must reach the barriers, so threads without a row of their own read an
        # existing row and write nothing.
        segment = T.Bind(tirx.min(wanted, span[1] - 1))
        row = T.Bind(tirx.Cast("int64", runs.rows[segment]))
        with T.If(works), T.Then(), _vectors(vectors, members, member) as vector:
            edges = runs.offsets[segment], runs.offsets[segment + 1]
            total = _sum(sums, lanes, edges, vector * lanes)
            with T.vectorized(0, lanes) as lane:
                T.buffer_store(gradient, total[lane], [place, vector * lanes + lane])
        barrier()
        named = runs.offsets[segment], runs.offsets[segment + 1]
        count = _count(named, parameter)
        state = parameter.begin_row(row, lambda d: gradient[place, d], h, count)
        barrier()
        with T.If(works), T.Then():
            with _vectors(vectors, members, member) as vector, _each_lane(parameter, lanes) as lane:
                column = vector * lanes + lane
                state.update(column, gradient[place, column])
            with T.If(member == 0), T.Then():
                state.end()


def _count(edges: tuple[Any, Any], parameter: Parameter) -> Any:
    return tirx.Cast(parameter.dtype, edges[1] - edges[0])


def _sum(sums: Sums, lanes: int, edges: tuple[Any, Any], column: Any) -> Any:
    dtype = str(sums.values.dtype)
    total = T.alloc_local((lanes,), dtype)
    clear(total, lanes, dtype)
    sums.add(total, lanes, edges, column)
    return total


@contextmanager
def _vectors(vectors: int, members: int, member: Any) -> Iterator[Any]:
    """Loop over the vectors that a thread owns in its row."""
    with T.serial(0, -(-vectors // members)) as turn:
        vector = T.Bind(turn * members + member)
        with T.If(vector < vectors), T.Then():
            yield vector


def dense_update_kernel(spec: KernelSpec, dtype: str) -> PrimFunc:
    """Build the in-place update of rows [first, end) of a parameter viewed as (rows, columns).

    One compiled kernel serves any shape. Arguments: gradient (N, C), weight (R, C), one array per
    slot, the scalars of the spec, two keys of the rounding noise if weights are rounded, first,
    end, and begin (the gradient's row for `first`). If `is_flat`, the kernel updates elements
    [first, end) of (1, R * C) with a gradient (1, N * C).
    """
    with kernel() as built:
        height, width, rows, across = extents(4)
        flat = is_flat(spec, format_of(dtype))
        gradient = buffer("gradient", (rows, across if flat else width), format_of(dtype).computed)
        parameter = Parameter.declare(spec, height, width, dtype)
        parameter.lanes = 1
        h = scalars(spec, dtype)
        first, end, begin = (scalar(name, "int64") for name in ("first", "end", "begin"))
        if spec.formula.by_row:
            dense_rows(parameter, gradient, h, first, end, begin)
        elif flat:
            with each_of(end - first) as number:
                state = parameter.begin_row(0, lambda d: gradient[0, d], h)
                state.update(first + number, gradient[0, begin + number])
        else:
            with each_of((end - first) * width) as number:
                row, column = T.Bind(number // width), T.Bind(number % width)
                given = T.Bind(begin + row)
                state = parameter.begin_row(T.Bind(first + row), lambda d: gradient[given, d], h)
                state.update(column, gradient[given, column])
    return built.get()


def dense_rows(
    parameter: Parameter, gradient: Any, h: Any, first: Any, end: Any, begin: Any = 0
) -> None:
    """Emit the update of rows [first, end), one block per row, with gradient rows from `begin`."""
    with (
        blocks_of_threads(end - first) as (block, thread),
        T.If(block < end - first),
        T.Then(),
    ):
        given = T.Bind(begin + block)
        state = parameter.begin_row(T.Bind(first + block), lambda d: gradient[given, d], h)
        barrier()
        with T.serial(0, tirx.ceildiv(parameter.width, THREADS)) as turn:
            column = T.Bind(turn * THREADS + thread)
            with T.If(column < parameter.width), T.Then():
                state.update(column, gradient[given, column])
        with T.If(thread == 0), T.Then():
            state.end()


def catch_up_kernel(
    spec: KernelSpec, width: int, dtype: str, index_dtype: str | None, capped: bool
) -> PrimFunc:
    """Build the kernel that brings rows up to step `now`; one thread replays one row.

    The arguments are as in `replay.catch_up_kernel`, but `replayed` has an entry for each block.
    """
    with kernel() as built:
        segments, table, steps, strips = extents(4)
        rows = buffer("rows", (segments,), index_dtype) if index_dtype is not None else None
        parameter = Parameter.declare(spec, table, width, dtype)
        parameter.lanes = vector_lanes(width, dtype)
        last = buffer("last", (table,), "int32")
        history = buffer("history", (steps, columns(spec, dtype)), "float64")
        replayed = buffer("replayed", (strips,), "int64")
        nothing = scalar("zero", format_of(dtype).computed)
        first, end = scalar("first", "int64"), scalar("end", "int64")
        base, now, cap = (scalar(name, "int32") for name in ("base", "now", "cap"))
        past = replay.PastSteps(history, base, spec, dtype)
        with blocks_of_threads(tirx.ceildiv(end - first, THREADS)) as (block, thread):
            counts = T.alloc_buffer((THREADS,), "int64", scope="shared")
            mine = T.alloc_local((1,), "int64")
            T.buffer_store(mine, tirx.const(0, "int64"), [0])
            place = T.Bind(first + block * THREADS + thread)
            with T.If(place < end), T.Then():
                row = T.Bind(place if rows is None else tirx.Cast("int64", rows[place]))
                until = now, cap if capped else None
                with replay.replay_row(parameter, row, last, past, until, nothing) as count:
                    T.buffer_store(mine, count, [0])
            T.buffer_store(counts, mine[0], [thread])
            barrier()
            with T.If(thread == 0), T.Then():
                with T.serial(0, THREADS - 1) as k:
                    T.buffer_store(mine, mine[0] + counts[k + 1], [0])
                T.buffer_store(replayed, mine[0], [block])
    return built.get()


KERNELS = {
    "catching up rows": catch_up_kernel,
    "tasks of catching up rows": lambda rows: max(1, -(-rows // THREADS)),
}
