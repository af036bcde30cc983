# SPDX-License-Identifier: Apache-2.0
"""Kernels of column sums over the batch, for gradients of biases and products with one column.

There are few columns and many rows, so one thread per column would leave most of a device idle. The
batch is split into pieces. A block sums some columns over one piece and writes a row of partial
sums; a second launch adds these rows. Within a block, adjacent threads take adjacent columns, four
each if this divides the number of columns; several threads share the rows of a column. The split,
and thus the order of every sum, depends only on the number of columns.

Cost: one read of the input; the partial sums are less than 2 % of it at usual batch sizes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from tvm import s_tir, tirx
from tvm.s_tir.dlight.analysis import SBlockInfo, normalize_prim_func
from tvm.script.ir_builder import tirx as T

from sparsetrain.backends.cuda.schedule.epilogue import moved
from sparsetrain.compiler.schedule.operands import inline_all_but_last
from sparsetrain.compiler.schedule.product import is_zero
from sparsetrain.kernels.builder import kernel

THREADS = 256
_BLOCKS = 1056  # eight per multiprocessor of a large device
_MOST_PIECES = 264
_AHEAD = 8  # rows that a thread loads before it adds the first of them
_LANES = 4  # columns per thread, if they divide the number of columns
_WIDE, _NARROW = 128, 32  # columns per block, in the first and in the second launch

Term = Callable[[Any, Any], Any]  # (row, column) -> term
Store = Callable[[Any, Any, Any], None]  # (piece, column, sum): writes the sum


class Columns(NamedTuple):
    """Column sums: for each of `columns` columns, the sum of `term` over `rows` rows."""

    term: Term
    rows: Any
    columns: int

    @property
    def lanes(self) -> int:
        """Number of columns per thread."""
        return _LANES if self.columns % _LANES == 0 else 1


def column_sums(function: tirx.PrimFunc) -> tirx.PrimFunc | None:
    """Return the scheduled function if it sums columns over the batch, else None."""
    sch = s_tir.Schedule(function)
    found = _match(sch, normalize_prim_func(sch) or [])
    return None if found is None else function.with_body(_body(*found))


def _match(sch: s_tir.Schedule, blocks: list[SBlockInfo]) -> tuple[Columns, Store] | None:
    """Return the column sums and how to store them, or None if the kernel is anything else."""
    if not blocks or not all(info.is_injective() for info in blocks[:-1]):
        return None
    axes, extents = blocks[-1].dom_kind(), blocks[-1].dom()
    spatial = [n for n, extent in enumerate(extents[:-1]) if extent != 1]
    known = all(isinstance(extent, int) for extent in extents[:-1])
    if axes != "S" * (len(axes) - 1) + "R" or not known or len(spatial) > 1:
        return None
    if isinstance(extents[-1], int):  # a static extent is not the batch
        return None
    block = sch.get(inline_all_but_last(sch, blocks))
    if not _adds_from_zero(block):
        return None
    columns = extents[spatial[0]] if spatial else 1
    at = _Places(block, spatial[0] if spatial else None)
    return Columns(at.term, extents[-1], columns), at.store


def _adds_from_zero(block: s_tir.SBlock) -> bool:
    """Whether a block is `out[...] = out[...] + term`, starting from zero."""
    store = block.body
    return (
        isinstance(store, tirx.BufferStore)
        and isinstance(store.value, tirx.Add)
        and str(store.buffer.dtype) == "float32"
        and getattr(store.value.a, "source", store.value).same_as(store.buffer)
        and is_zero(block.init)
    )


class _Places:
    """The term and the result of a block, at given rows and columns."""

    def __init__(self, block: s_tir.SBlock, column: int | None) -> None:
        self._axes = [axis.var for axis in block.iter_vars]
        self._body, self._column = block.body, column

    def term(self, row: Any, column: Any) -> Any:
        """Return the term that a row adds to a column's sum."""
        return self._moved(self._body.value.b, row, column)

    def store(self, _piece: Any, column: Any, total: Any) -> None:
        """Write a column's sum to the result."""
        places = [self._moved(index, None, column) for index in self._body.indices]
        T.buffer_store(self._body.buffer, total, places)

    def _moved(self, expression: Any, row: Any, column: Any) -> Any:
        zero = tirx.const(0, "int64")
        new = [column if n == self._column else zero for n in range(len(self._axes) - 1)] + [row]
        return moved(expression, self._axes, new)


def _body(sums: Columns, store: Store) -> tirx.Stmt:
    """Build two launches: the first writes partial sums, the second adds them."""
    pieces = max(1, min(_MOST_PIECES, _BLOCKS // -(-sums.columns // _WIDE)))
    with kernel("column_sums") as built:
        parts = T.alloc_buffer((pieces, sums.columns), "float32")

        def keep(piece: Any, column: Any, total: Any) -> None:
            T.buffer_store(parts, total, [piece, column])

        def part(piece: Any, column: Any) -> Any:
            return parts[piece, column]

        launch(sums, keep, _WIDE, pieces)
        launch(Columns(part, tirx.const(pieces, "int64"), sums.columns), store, _NARROW, 1)
    return built.get().body


def launch(sums: Columns, store: Store, width: int, pieces: int) -> None:
    """Split the rows into `pieces` ranges and sum these in parallel.

    A block of 256 threads sums `width` columns of one range. `width` is a power of two, and at most
    the number of columns that 256 threads can take.
    """
    zero, count = tirx.const(0, "int64"), tirx.const(pieces, "int64")
    blocks = tirx.const(-(-sums.columns // width), "int64")
    with (
        T.thread_binding(zero, blocks, thread="blockIdx.x") as block,
        T.thread_binding(zero, count, thread="blockIdx.y") as piece,
        T.thread_binding(0, THREADS, thread="threadIdx.x") as thread,
    ):
        across = _threads_across(sums, width)
        down = THREADS // across
        row, place = tirx.floordiv(thread, across), tirx.floormod(thread, across)
        first = T.Bind(block * width + tirx.Cast("int64", place * sums.lanes))
        span = tirx.ceildiv(sums.rows, count)
        begin = T.Bind(piece * span)
        end = T.Bind(tirx.min(begin + span, sums.rows))
        shared = T.alloc_buffer((THREADS * sums.lanes,), "float32", scope="shared")
        mine = T.alloc_local((sums.lanes,), "float32")
        _sum_rows(sums, mine, first, (begin + tirx.Cast("int64", row), end, down))
        with T.unroll(0, sums.lanes) as lane:
            T.buffer_store(shared, mine[lane], [thread * sums.lanes + lane])
        T.evaluate(tirx.call_intrin("int32", "tirx.tvm_storage_sync", "shared"))
        held = across * sums.lanes
        for begun in range(0, held, THREADS):
            number = thread + begun
            column = T.Bind(block * width + tirx.Cast("int64", number))
            with T.If(tirx.all(number < held, column < sums.columns)), T.Then():
                total = T.alloc_local((1,), "float32")
                T.buffer_store(total, tirx.const(0, "float32"), [0])
                with T.serial(0, down) as other:
                    T.buffer_store(total, total[0] + shared[other * held + number], [0])
                store(piece, column, total[0])


def _threads_across(sums: Columns, width: int) -> int:
    """Return how many threads cover a block's columns: a power of two, no larger than needed."""
    most = width // sums.lanes
    needed = -(-min(sums.columns, width) // sums.lanes)
    return min(most, 1 << (needed - 1).bit_length())


def _sum_rows(sums: Columns, into: Any, first: Any, rows: tuple[Any, Any, int]) -> None:
    """Add every `step`-th row, and load several rows ahead so that loads overlap.

    Past the end, load the last row again and add zero, because loads in a branch would not overlap.
    """
    begin, end, step = rows
    known = isinstance(sums.rows, tirx.IntImm)
    count = min(_AHEAD, -(-int(sums.rows) // step)) if known else _AHEAD
    ahead = T.alloc_local((count * sums.lanes,), "float32")
    zero = tirx.const(0, "float32")
    with T.unroll(0, sums.lanes) as lane:
        T.buffer_store(into, zero, [lane])
    turns = tirx.ceildiv(end - begin, step * count)
    with T.If(first < sums.columns), T.Then(), T.serial(0, turns) as turn:
        row = T.Bind(begin + turn * (count * step))
        for n in range(count):
            here = T.Bind(tirx.min(row + n * step, end - 1))
            with T.vectorized(0, sums.lanes) as lane:
                term = sums.term(here, first + tirx.Cast("int64", lane))
                T.buffer_store(ahead, term, [n * sums.lanes + lane])
        for n in range(count):
            for lane in range(sums.lanes):
                term = tirx.Select(row + n * step < end, ahead[n * sums.lanes + lane], zero)
                T.buffer_store(into, into[lane] + term, [lane])
