# SPDX-License-Identifier: Apache-2.0
"""The CPU kernels of row-sparse tensors: sort the ids, sum the segments, scatter.

Preconditions (checked by `RowSparse.validate`, not here): indices lie in [0, num_rows], sources
in the value rows. Every output row has one writer and every sum a fixed order, so the bits do not
depend on the number of threads. Row numbers become int64 before they are multiplied by a width.

What is parallel: output rows (`segment_sum`, `row_squares`, the zero fill of `scatter_add`). The
sort and the scatter are serial. What is vectorised: the columns of a row.
"""

from __future__ import annotations

from tvm.script import tirx as T
from tvm.tirx import PrimFunc

from sparsetrain.relax_op import SCHEDULED

DIGIT_BITS = 11  # 2048 counters of 4 bytes stay in the first-level cache
DIGITS = 1 << DIGIT_BITS
MAX_LANES = 128


def column_tiles(width: int, most: int = MAX_LANES) -> tuple[int, int]:
    """Split a row of `width` columns into (tiles, lanes) with lanes a divisor up to `most`."""
    lanes = max(lane for lane in range(1, min(width, most) + 1) if width % lane == 0)
    return width // lanes, lanes


def radix_sort_kernel(index_dtype: str) -> PrimFunc:
    """Stable least-significant-digit radix sort of ids, and the position each came from.

    `passes` digits are sorted, so the cost is N times the bits of the largest id, not of the
    dtype. The result stands in row ``passes % 2`` of `keys` and `order`.
    """

    @T.prim_func(s_tir=True)
    def radix_sort(ids: T.handle, keys: T.handle, order: T.handle, passes: T.int32):
        T.func_attr(SCHEDULED)
        N = T.int64()
        Ids = T.match_buffer(ids, (N,), index_dtype)
        Keys = T.match_buffer(keys, (2, N), index_dtype)
        Order = T.match_buffer(order, (2, N), "int32")
        start = T.alloc_buffer((DIGITS,), "int32", scope="local")
        running = T.alloc_buffer((1,), "int32", scope="local")
        for n in T.serial(N):
            Keys[0, n] = Ids[n]
            Order[0, n] = T.int32(n)
        for p in T.serial(passes):
            for d in T.serial(DIGITS):
                start[d] = 0
            for n in T.serial(N):
                digit = T.int32(
                    (Keys[p % 2, n] >> T.cast(p * DIGIT_BITS, index_dtype))
                    & T.cast(DIGITS - 1, index_dtype)
                )
                start[digit] = start[digit] + 1
            running[0] = 0
            for d in T.serial(DIGITS):
                count = start[d]
                start[d] = running[0]
                running[0] = running[0] + count
            for n in T.serial(N):
                digit = T.int32(
                    (Keys[p % 2, n] >> T.cast(p * DIGIT_BITS, index_dtype))
                    & T.cast(DIGITS - 1, index_dtype)
                )
                place = start[digit]
                start[digit] = place + 1
                Keys[1 - p % 2, place] = Keys[p % 2, n]
                Order[1 - p % 2, place] = Order[p % 2, n]

    return radix_sort


def find_segments_kernel(index_dtype: str) -> PrimFunc:
    """Unique rows of sorted ids and where each one's run begins; padding is left out.

    `half` says which row of `keys` and `positions` is sorted. `counts` receives the number of
    unique rows, ``offsets[counts[0]]`` ends the last run, and the number of ids outside the table.
    """

    @T.prim_func(s_tir=True)
    def find_segments(
        keys: T.handle,
        positions: T.handle,
        order: T.handle,
        rows: T.handle,
        offsets: T.handle,
        counts: T.handle,
        half: T.int32,
        num_rows: T.int64,
    ):
        T.func_attr(SCHEDULED)
        N = T.int64()
        Keys = T.match_buffer(keys, (2, N), index_dtype)
        Positions = T.match_buffer(positions, (2, N), "int32")
        Order = T.match_buffer(order, (N,), "int32")
        Rows = T.match_buffer(rows, (N,), index_dtype)
        Offsets = T.match_buffer(offsets, (N + 1,), "int32")
        Counts = T.match_buffer(counts, (2,), "int32")
        unique = T.alloc_buffer((1,), "int32", scope="local")
        valid = T.alloc_buffer((1,), "int32", scope="local")
        unique[0] = 0
        valid[0] = 0
        Counts[1] = 0
        for n in T.serial(N):
            Order[n] = Positions[half, n]
            if T.int64(Keys[half, n]) < T.int64(0) or T.int64(Keys[half, n]) > num_rows:
                Counts[1] = Counts[1] + 1
            if T.int64(Keys[half, n]) < num_rows:
                valid[0] = valid[0] + 1
                if n == T.int64(0) or Keys[half, T.max(n, T.int64(1)) - 1] != Keys[half, n]:
                    Rows[unique[0]] = Keys[half, n]
                    Offsets[unique[0]] = T.int32(n)
                    unique[0] = unique[0] + 1
        Offsets[unique[0]] = valid[0]
        Counts[0] = unique[0]

    return find_segments


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
