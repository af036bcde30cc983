# SPDX-License-Identifier: Apache-2.0
"""Kernels of the finiteness check: a search for NaN and infinity, and the verdict on a step.

NaN and infinity are the floats with all exponent bits set, so the search takes the maximum of the
exponent fields; a compiler that assumes that floats are never NaN cannot remove this test of
integers. Cost: one pass over the arrays at memory bandwidth.

What is parallel: chunks of each array. What is vectorized: the elements of a chunk.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from tvm import tirx
from tvm.script.ir_builder import tirx as T
from tvm.tirx import PrimFunc, const

from sparsetrain import runtime
from sparsetrain.kernels.array_table import ArrayTable, number_table
from sparsetrain.kernels.builder import buffer, extents, kernel
from sparsetrain.runtime import NDArray
from sparsetrain.runtime.compiling import backend_kernel
from sparsetrain.runtime.pool import scratch_tensor
from sparsetrain.runtime.tensors import target_of
from sparsetrain.tables.kernel_parts import flat

CHUNKS = 16
LANES = 64  # four vectors of AVX-512: their maxima are independent

# Dtype -> the integer dtype of the same width, and its mask for the exponent.
_EXPONENTS = {"float32": ("int32", 0x7F800000), "float64": ("int64", 0x7FF0000000000000)}

Kind = tuple[str, int]  # dtype and number of axes
Body = Callable[[Sequence[Any], Any], None]


def which_nonfinite(arrays: Sequence[NDArray]) -> list[int]:
    """Return the positions of the arrays, float32 or float64, that have NaN or infinity."""
    if not arrays:
        return []
    kinds = tuple((array.dtype, len(array.shape)) for array in arrays)
    found = scratch_tensor((len(arrays), CHUNKS), "int32", arrays[0])
    _kernel(target_of(arrays[0]), kinds)(*arrays, found)
    return np.flatnonzero(runtime.as_numpy(found).any(axis=1)).tolist()


def nonfinite_kernel(kinds: Sequence[Kind], search: Body | None = None) -> PrimFunc:
    """Build the search for NaN and infinity.

    Arguments: the arrays, then found (K, CHUNKS) int32, nonzero if a chunk is not finite. `search`
    emits the search in arrays viewed as (1, n); the default is the CPU's search.
    """
    with kernel() as built:
        shapes = [extents(rank) for _, rank in kinds]
        arrays = [
            buffer(f"values{n}", shape, dtype)
            for n, (shape, (dtype, _)) in enumerate(zip(shapes, kinds, strict=True))
        ]
        found = buffer("found", (len(kinds), CHUNKS), "int32")
        (search or _search_in_chunks)([flat(array) for array in arrays], found)
    return built.get()


def _search_in_chunks(arrays: Sequence[Any], found: Any) -> None:
    """Search all arrays, dtype by dtype, in one launch; combine the lanes after it."""
    wrong = T.alloc_buffer((len(arrays), CHUNKS, LANES), "int32", scope="global")
    for dtype in dict.fromkeys(str(array.dtype) for array in arrays):
        places = [n for n, array in enumerate(arrays) if str(array.dtype) == dtype]
        alike, numbers = ArrayTable([arrays[n] for n in places]), number_table(places)
        with T.parallel(0, CHUNKS) as chunk, T.serial(0, len(places)) as number:
            _search(alike[number], chunk, wrong, T.Bind(numbers[number]))
    with T.serial(0, len(arrays)) as n, T.serial(0, CHUNKS) as chunk:
        T.buffer_store(found, const(0, "int32"), [n, chunk])
        with T.serial(0, LANES) as lane:
            T.buffer_store(found, found[n, chunk] | wrong[n, chunk, lane], [n, chunk])


def _search(values: Any, chunk: Any, wrong: Any, place: Any) -> None:
    """Search a chunk of an array (1, n); each lane records whether it found NaN or infinity."""
    integer, exponent = _EXPONENTS[str(values.dtype)]
    size, whole = values.shape[1], const(exponent, integer)

    def field(place: Any) -> Any:
        return T.reinterpret(integer, values[0, place]) & whole

    largest = T.alloc_local((LANES,), integer)
    groups = T.Bind(tirx.floordiv(size, LANES))
    first = T.Bind(tirx.floordiv(chunk * groups, CHUNKS))
    end = T.Bind(tirx.floordiv((chunk + 1) * groups, CHUNKS))
    with T.vectorized(0, LANES) as lane:
        T.buffer_store(largest, const(0, integer), [lane])
    with T.serial(0, end - first) as group, T.vectorized(0, LANES) as lane:
        bits = field((first + group) * LANES + lane)
        T.buffer_store(largest, tirx.max(largest[lane], bits), [lane])
    with T.If(chunk == 0), T.Then(), T.serial(0, tirx.floormod(size, LANES)) as i:
        T.buffer_store(largest, tirx.max(largest[0], field(groups * LANES + i)), [0])
    with T.vectorized(0, LANES) as lane:
        T.buffer_store(wrong, tirx.Cast("int32", largest[lane] == whole), [place, chunk, lane])


def verdict_kernel(arrays: int, tables: int) -> PrimFunc:
    """Build the kernel of the verdict, which all updates read.

    Arguments: found (K, CHUNKS), from the search; counts (2,) of each plan; report
    (1 + K + tables,) int64: whether anything is wrong, whether array k is not finite, the number of
    ids outside each table.
    """
    with kernel() as built:
        found = buffer("found", (arrays, CHUNKS), "int32")
        counts = [buffer(f"counts{n}", (2,), "int32") for n in range(tables)]
        report = buffer("report", (1 + arrays + tables,), "int64")
        wrong = T.alloc_local((1,), "int64")
        T.buffer_store(wrong, const(0, "int64"), [0])
        with T.serial(0, arrays) as k:
            T.buffer_store(report, const(0, "int64"), [1 + k])
            with T.serial(0, CHUNKS) as chunk:
                here = report[1 + k] | tirx.Cast("int64", found[k, chunk])
                T.buffer_store(report, here, [1 + k])
            T.buffer_store(wrong, wrong[0] | report[1 + k], [0])
        for n, count in enumerate(counts):
            T.buffer_store(report, tirx.Cast("int64", count[1]), [1 + arrays + n])
            T.buffer_store(wrong, wrong[0] | report[1 + arrays + n], [0])
        T.buffer_store(report, wrong[0], [0])
    return built.get()


_kernel = backend_kernel("check for NaN and infinity", nonfinite_kernel)
