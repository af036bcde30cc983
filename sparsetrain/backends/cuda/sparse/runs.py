# SPDX-License-Identifier: Apache-2.0
"""CUDA kernels that sum runs of equal ids, chunk by chunk.

Runs can be long: in a table of three rows, a batch's ids form three runs. So sorted entries are
divided into chunks of `CHUNK` entries, and blocks of `CHUNK` chunks. First, each chunk and block
that is within one run is summed. Then a run's sum adds up its first entries, its chunks and blocks,
and its last entries, in this order. For a run of n entries, no thread adds more than 64 entries and
64 + n / 1024 sums.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from tvm import tirx
from tvm.script.ir_builder import tirx as T
from tvm.tirx import PrimFunc

from sparsetrain.backends.cuda.sparse.parts import each_vector
from sparsetrain.kernels.builder import buffer, extents, kernel
from sparsetrain.kernels.loops import Number, store_vector

CHUNK = 32


class Sums(NamedTuple):
    """The arrays that the sum of a run reads.

    Parameters
    ----------
    values : (M, D)
        The value rows.
    chunks, blocks : (ceil(N / 32), D), (ceil(N / 1024), D)
        The results of `chunk_sums_kernel`.
    value_row : callable
        Maps an index into the plan's order to a row of `values`.
    """

    values: Any
    chunks: Any
    blocks: Any
    value_row: Callable[[Any], Any]

    def add(self, total: Any, lanes: int, span: tuple[Any, Any], column: Any) -> None:
        """Add columns [column, column + lanes) of the plan's entries in `span` to `total`."""
        first, behind = (T.Bind(edge) for edge in span)
        with T.If(behind - first < CHUNK):  # most runs; this branch needs half the arithmetic
            with T.Then(), T.serial(0, behind - first) as k:
                row = T.Bind(self.value_row(first + k))
                _accumulate(total, lanes, lambda lane: self.values[row, column + lane])
            with T.Else():
                self._add_by_chunks(total, lanes, (first, behind), column)

    def _add_by_chunks(self, total: Any, lanes: int, span: tuple[Any, Any], column: Any) -> None:
        begin, end = (T.Bind(tirx.Cast("int64", edge)) for edge in span)
        square = CHUNK * CHUNK
        first_chunk = T.Bind(tirx.min(end, _up(begin, CHUNK)))
        last = T.Bind(tirx.max(first_chunk, _down(end, CHUNK)))
        first_block = T.Bind(tirx.min(last, _up(first_chunk, square)))
        last_block = T.Bind(tirx.max(first_block, _down(last, square)))

        def entries(start: Any, stop: Any) -> None:
            with T.serial(0, stop - start) as k:
                row = T.Bind(self.value_row(start + k))
                _accumulate(total, lanes, lambda lane: self.values[row, column + lane])

        def sums(array: Any, size: int, start: Any, stop: Any) -> None:
            with T.serial(0, tirx.floordiv(stop - start, size)) as k:
                row = T.Bind(tirx.floordiv(start, size) + k)
                _accumulate(total, lanes, lambda lane: array[row, column + lane])

        entries(begin, first_chunk)
        sums(self.chunks, CHUNK, first_chunk, first_block)
        sums(self.blocks, square, first_block, last_block)
        sums(self.chunks, CHUNK, last_block, last)
        entries(last, end)


def _up(number: Any, step: int) -> Any:
    return tirx.floordiv(number + (step - 1), step) * step


def _down(number: Any, step: int) -> Any:
    return tirx.floordiv(number, step) * step


def _accumulate(total: Any, lanes: int, term: Callable[[Any], Any]) -> None:
    store_vector(total, [0], lanes, lambda lane: total[lane] + term(lane))


def clear(total: Any, lanes: int, dtype: str) -> None:
    """Set a sum to zero."""
    store_vector(total, [0], lanes, lambda lane: tirx.const(0, dtype))


def segment_sum_kernel(width: int, dtype: str, pooled: bool) -> PrimFunc:
    """Return the kernel that sums the value rows of each run, with one writer per output element.

    It takes the arguments of the CPU kernel, with `chunks` and `blocks` before `out`.
    """
    with kernel("segment_sum") as built:
        plan = _Entries(width, dtype, pooled)
        chunk_rows, block_rows, runs = extents(3)
        chunks = buffer("chunks", (chunk_rows, width), dtype)
        blocks = buffer("blocks", (block_rows, width), dtype)
        out = buffer("out", (runs, width), dtype)
        with each_vector(runs, width, dtype) as (run, column, lanes):
            total = T.alloc_local((lanes,), dtype)
            clear(total, lanes, dtype)
            sums = Sums(plan.values, chunks, blocks, plan.value_row)
            sums.add(total, lanes, (plan.offsets[run], plan.offsets[run + 1]), column)
            store_vector(out, [run, column], lanes, lambda lane: total[lane])
    return built.get()


class _Entries:
    """The kernel arguments that map runs to entries, and entries to value rows."""

    def __init__(self, width: int, dtype: str, pooled: bool) -> None:
        entries, edges, sources, stored = extents(4)
        self.edges, self.pooled = edges, pooled  # number of runs plus one
        self.order = buffer("order", (entries,), "int32")
        self.offsets = buffer("offsets", (edges,), "int32")
        self.source = buffer("source", (sources,), "int32")
        self.values = buffer("values", (stored, width), dtype)

    def value_row(self, place: Any) -> Any:
        entry = self.order[place]
        return tirx.Cast("int64", self.source[entry] if self.pooled else entry)

    def one_run_holds(self, begin: Any, end: Any) -> Any:
        """Whether entries [begin, end) are in one run, found by a binary search of the offsets."""
        low, high = Number("int64"), Number("int64")
        high.set(self.edges - 1)
        with T.While(low.now + 1 < high.now):
            middle = T.Bind(tirx.floordiv(low.now + high.now, 2))
            with T.If(tirx.Cast("int64", self.offsets[middle]) <= begin):
                with T.Then():
                    low.set(middle)
                with T.Else():
                    high.set(middle)
        behind = self.offsets[tirx.min(low.now + 1, self.edges - 1)]
        return tirx.And(self.edges > 1, tirx.Cast("int64", behind) >= end)


def chunk_sums_kernel(width: int, dtype: str, pooled: bool) -> PrimFunc:
    """Return the kernel that sums each chunk and block within one run; other sums are undefined.

    It takes the arguments of `segment_sum_kernel` except `out`, and writes the sums to `chunks`
    (ceil(N / 32), D) and `blocks` (ceil(N / 1024), D).
    """
    with kernel("chunk_sums") as built:
        plan = _Entries(width, dtype, pooled)
        chunk_rows, block_rows = extents(2)
        chunks = buffer("chunks", (chunk_rows, width), dtype)
        blocks = buffer("blocks", (block_rows, width), dtype)
        _sum_chunks(plan, CHUNK, chunks, lambda place: (plan.values, plan.value_row(place)))
        _sum_chunks(plan, CHUNK * CHUNK, blocks, lambda chunk: (chunks, chunk))
    return built.get()


def _sum_chunks(
    plan: _Entries, size: int, out: Any, term: Callable[[Any], tuple[Any, Any]]
) -> None:
    """Add the `CHUNK` terms of each part of `size` entries that is within one run."""
    dtype, (rows, width) = str(out.dtype), out.shape
    with (
        each_vector(rows, int(width), dtype) as (chunk, column, lanes),
        T.If(plan.one_run_holds(chunk * size, (chunk + 1) * size)),
        T.Then(),
    ):
        total = T.alloc_local((lanes,), dtype)
        clear(total, lanes, dtype)
        with T.serial(0, CHUNK) as k:
            array, place = term(chunk * CHUNK + k)
            row = T.Bind(place)
            _accumulate(total, lanes, lambda lane: array[row, column + lane])
        store_vector(out, [chunk, column], lanes, lambda lane: total[lane])
