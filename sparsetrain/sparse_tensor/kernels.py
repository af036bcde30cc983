# SPDX-License-Identifier: Apache-2.0
"""The CPU kernels of row-sparse tensors: sort the ids, sum the segments, scatter.

Preconditions (checked by `RowSparse.validate`, not here): indices lie in [0, num_rows], sources
in the value rows. Every output row has one writer and every sum a fixed order, so the bits do not
depend on the number of threads. Row numbers become int64 before they are multiplied by a width.

What is parallel: strips of the ids (the sort), output rows (`segment_sum`, `row_squares`, the zero
fill of `scatter_add`). The scatter is serial. What is vectorised: the columns of a row.
"""

from __future__ import annotations

from functools import cache

from tvm.script import tirx as T
from tvm.tirx import PrimFunc

from sparsetrain.relax_op import SCHEDULED

DIGIT_BITS = 11  # at most: 2048 counters of 4 bytes stay in the first-level cache
DIGITS = 1 << DIGIT_BITS
MAX_LANES = 128


def column_tiles(width: int, most: int = MAX_LANES) -> tuple[int, int]:
    """Split a row of `width` columns into (tiles, lanes) with lanes a divisor up to `most`."""
    lanes = max(lane for lane in range(1, min(width, most) + 1) if width % lane == 0)
    return width // lanes, lanes


def plan_kernel(index_dtype: str, parallel: bool) -> PrimFunc:
    """Sort ids and find the runs of equal ones: a stable radix sort from the lowest digit up.

    `passes` digits of `bits` each are sorted, so the cost is N times the bits of the table's rows,
    not of the dtype. A strip counts the digits of its share of the entries and then places them
    behind those of the strips before it: every number of strips gives the same, stable order.

    Row 0 of `order` receives the positions of the ids in sorted order, `rows` the unique rows,
    `offsets` where the run of each begins and the last one ends; padding (ids equal to `num_rows`)
    comes last and belongs to no run. `counts` receives the number of unique rows and the number of
    ids outside [0, num_rows], with which nothing else means anything.
    """
    over_strips = T.parallel if parallel else T.serial

    @T.prim_func(s_tir=True)
    def make_plan(
        ids: T.handle,
        keys: T.handle,
        order: T.handle,
        start: T.handle,
        rows: T.handle,
        offsets: T.handle,
        counts: T.handle,
        passes: T.int32,
        bits: T.int32,
        num_rows: T.int64,
    ):
        T.func_attr(SCHEDULED)
        N, C, S = T.int64(), T.int64(), T.int64()
        Ids = T.match_buffer(ids, (N,), index_dtype)
        Keys = T.match_buffer(keys, (2, C), index_dtype)
        Order = T.match_buffer(order, (2, N), "int32")
        Start = T.match_buffer(start, (S, DIGITS), "int32")
        Rows = T.match_buffer(rows, (N,), index_dtype)
        Offsets = T.match_buffer(offsets, (N + 1,), "int32")
        Counts = T.match_buffer(counts, (2,), "int32")
        outside = T.int32(0)
        padding = T.int32(0)
        for n in T.serial(N):
            row = T.int64(Ids[n])
            outside = outside + T.cast(row < T.int64(0) or row > num_rows, "int32")
            padding = padding + T.cast(row == num_rows, "int32")
            Keys[passes % 2, n] = Ids[n]
            Order[passes % 2, n] = T.int32(n)
        for p in T.serial(passes):
            half: T.let = (passes - p) % 2
            shift: T.let = T.cast(p * bits, index_dtype)
            mask: T.let = T.cast((T.int32(1) << bits) - 1, index_dtype)
            for s in over_strips(S):
                for d in T.serial(T.int32(1) << bits):
                    Start[s, d] = 0
                for n in T.serial(N * (s + 1) // S - N * s // S):
                    counted: T.let = T.int32((Keys[half, N * s // S + n] >> shift) & mask)
                    Start[s, counted] = Start[s, counted] + 1
            running = T.int32(0)
            for d in T.serial(T.int32(1) << bits):
                for s in T.serial(S):
                    count = Start[s, d]
                    Start[s, d] = running
                    running = running + count
            for s in over_strips(S):
                for n in T.serial(N * (s + 1) // S - N * s // S):
                    key: T.let = Keys[half, N * s // S + n]
                    digit: T.let = T.int32((key >> shift) & mask)
                    place: T.let = Start[s, digit]
                    Start[s, digit] = place + 1
                    Keys[1 - half, place] = key
                    Order[1 - half, place] = Order[half, N * s // S + n]
        unique = T.int32(0)
        Offsets[0] = 0
        # Without a branch: every entry writes its row's slot, and where its run would end.
        for n in T.serial(T.max(N - T.int64(padding), T.int64(0))):
            new: T.let = n == T.int64(0) or Keys[0, T.max(n, T.int64(1)) - 1] != Keys[0, n]
            unique = unique + T.cast(new, "int32")
            Rows[unique - 1] = Keys[0, n]
            Offsets[unique] = T.int32(n) + 1
        Counts[0] = unique
        Counts[1] = outside

    return make_plan


def segment_sum_kernel(width: int, dtype: str, pooled: bool) -> PrimFunc:
    """Sum the value rows of each run, first to last; one writer for each output row."""
    tiles, lanes = column_tiles(width)

    @T.prim_func(s_tir=True)
    def segment_sum(
        order: T.handle, offsets: T.handle, source: T.handle, values: T.handle, out: T.handle
    ):
        T.func_attr(SCHEDULED)
        N, M, S, U = T.int64(), T.int64(), T.int64(), T.int64()
        Order = T.match_buffer(order, (N,), "int32")
        Offsets = T.match_buffer(offsets, (U + 1,), "int32")
        Source = T.match_buffer(source, (S,), "int32")
        Values = T.match_buffer(values, (M, width), dtype)
        Out = T.match_buffer(out, (U, width), dtype)
        for u in T.parallel(U):
            for t in T.serial(tiles):
                total = T.alloc_buffer((lanes,), dtype, scope="local")
                for d in T.vectorized(lanes):
                    total[d] = T.cast(0, dtype)
                for k in T.serial(Offsets[u + 1] - Offsets[u]):
                    entry = Order[Offsets[u] + k]
                    row = T.int64(Source[entry] if pooled else entry)
                    for d in T.vectorized(lanes):
                        total[d] = total[d] + Values[row, t * lanes + d]
                for d in T.vectorized(lanes):
                    Out[u, t * lanes + d] = total[d]

    return segment_sum


def row_squares_kernel(width: int, dtype: str) -> PrimFunc:
    """Sum of squares of each row, in float64."""

    @T.prim_func(s_tir=True)
    def row_squares(values: T.handle, out: T.handle):
        T.func_attr(SCHEDULED)
        U = T.int64()
        Values = T.match_buffer(values, (U, width), dtype)
        Out = T.match_buffer(out, (U,), "float64")
        for u in T.parallel(U):
            Out[u] = T.float64(0)
            for d in T.serial(width):
                Out[u] = Out[u] + T.float64(Values[u, d]) * T.float64(Values[u, d])

    return row_squares


@cache
def scatter_add_kernel(width: int, dtype: str, index_dtype: str, pooled: bool) -> PrimFunc:
    """Zero-fill, then ``out[ids[n]] += values[source[n]]`` in the order of n; skips padding."""
    tiles, lanes = column_tiles(width)

    @T.prim_func(s_tir=True, private=True)
    def scatter_add(ids: T.handle, values: T.handle, source: T.handle, out: T.handle):
        T.func_attr(SCHEDULED)
        N, M, S, V = T.int64(), T.int64(), T.int64(), T.int64()
        Ids = T.match_buffer(ids, (N,), index_dtype)
        Values = T.match_buffer(values, (M, width), dtype)
        Source = T.match_buffer(source, (S,), "int32" if pooled else index_dtype)
        Out = T.match_buffer(out, (V, width), dtype)
        for v in T.parallel(V):
            for t in T.serial(tiles):
                for d in T.vectorized(lanes):
                    Out[v, t * lanes + d] = T.cast(0, dtype)
        for n in T.serial(N):
            if T.int64(Ids[n]) < V:
                row = T.int64(Source[n]) if pooled else n
                for t in T.serial(tiles):
                    for d in T.vectorized(lanes):
                        Out[T.int64(Ids[n]), t * lanes + d] = (
                            Out[T.int64(Ids[n]), t * lanes + d] + Values[row, t * lanes + d]
                        )

    return scatter_add
