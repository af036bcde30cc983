# SPDX-License-Identifier: Apache-2.0
"""What this machine can do at best: stream through memory, and rewrite rows at random places.

Both are kernels that do nothing else, called as the arms' kernels are. The stream reads and writes
an array far larger than the caches. The other reads and writes as many distinct rows as a case
touches, of a table of its size, at places it was never at before.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from functools import cache, partial
from typing import Any

import numpy as np
import tvm
from tvm.script import tirx as T

from sparsetrain import runtime
from sparsetrain.kernels import builder
from sparsetrain.kernels.builder import Prefetch
from sparsetrain.runtime import NDArray
from sparsetrain.runtime.compiling import compile_kernel
from sparsetrain.runtime.host import host_target

STREAM_BYTES = 2**28
_STREAM_CALLS = 10
_LANES = 16
_STRIP = 4096  # vectors that one task of the stream works on


_FIRST, _SECOND = Prefetch(write=True, near=3), Prefetch(write=False, near=2)
# How many rows ahead, and how: not at all; into the first cache; into the second, which waits for
# more lines on some processors.
_WAYS = ((0, _FIRST), (16, _FIRST), (64, _FIRST), (64, _SECOND))


def stream_bandwidth() -> float:
    """Bytes per second, read and written, of ``a[i] = a[i] + 1``; the median of ten passes."""
    vectors = STREAM_BYTES // (4 * _LANES)
    array = runtime.zeros((vectors, _LANES), "float32", "the array of the stream roof")
    kernel = _stream_kernel()
    seconds = _times(kernel, [array] * (_STREAM_CALLS + 2))[2:]
    return 2 * STREAM_BYTES / float(np.median(seconds))


def random_row_seconds(table: NDArray, places: Iterable[np.ndarray]) -> np.ndarray:
    """Seconds to read and write rows of `table` (V, D), for each array of distinct row numbers.

    The rows are changed. Of kernels that ask for rows in several ways, or not at all, the times of
    the fastest.
    """
    arrays = [runtime.as_tensor(rows, "int32") for rows in places]
    kernels = [partial(kernel, table) for kernel in random_row_kernels(int(table.shape[1]))]
    # Each sees arrays of its own, so that none sees rows that another has made warm.
    found = [_times(run, arrays[first :: len(kernels)]) for first, run in enumerate(kernels)]
    return min((times for times in found if times.size), key=np.median)


def random_row_kernels(width: int) -> list[Callable[[NDArray, NDArray], object]]:
    """Kernels that rewrite rows (U,) int32 of a table (V, width), by each way of asking."""
    return [_row_kernel(width, *way) for way in _WAYS]


def _times(run: Callable[[Any], object], arguments: Iterable[Any]) -> np.ndarray:
    seconds = []
    for argument in arguments:
        begin = time.perf_counter()
        run(argument)
        seconds.append(time.perf_counter() - begin)
    return np.array(seconds)


@cache
def _stream_kernel() -> Any:
    @builder.prim_func(s_tir=True)
    def stream(data: T.handle):
        T.func_attr({"tirx.noalias": True, "tirx.is_scheduled": True})
        count = T.int64()
        array = T.match_buffer(data, (count, _LANES), "float32")
        for strip in T.parallel(count // _STRIP):
            for i in T.serial(_STRIP):
                for lane in T.vectorized(_LANES):
                    array[strip * _STRIP + i, lane] = array[strip * _STRIP + i, lane] + T.float32(1)

    return compile_kernel(stream, host_target())


@cache
def _row_kernel(width: int, ahead: int, prefetch: Prefetch) -> Any:
    lanes = next(n for n in (16, 8, 4, 2, 1) if width % n == 0)
    return compile_kernel(_rows(width, lanes, ahead, prefetch), host_target())


def _rows(width: int, lanes: int, ahead: int, prefetch: Prefetch) -> tvm.tirx.PrimFunc:
    write, near = int(prefetch.write), prefetch.near

    @builder.prim_func(s_tir=True)
    def rewrite(weights: T.handle, places: T.handle):
        T.func_attr({"tirx.noalias": True, "tirx.is_scheduled": True})
        height, count = T.int64(), T.int64()
        table = T.match_buffer(weights, (height, width), "float32")
        rows = T.match_buffer(places, (count,), "int32")
        for i in T.parallel(count):
            if ahead > 0:
                T.evaluate(
                    T.call_intrin(
                        "void",
                        "tirx.prefetch",
                        T.address_of(table[rows[T.min(i + ahead, count - 1)], 0]),
                        write,
                        near,
                        1,
                    )
                )
            for tile in T.serial(width // lanes):
                for lane in T.vectorized(lanes):
                    table[rows[i], tile * lanes + lane] = table[
                        rows[i], tile * lanes + lane
                    ] + T.float32(1)

    return rewrite
