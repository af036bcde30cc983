# SPDX-License-Identifier: Apache-2.0
"""Whether numbers are finite, for many arrays in one launch.

NaN and infinity are the floats whose exponent bits are all set, so the largest exponent field of an
array tells; compilers that assume there is no NaN do not touch integers. Cost: one pass over the
arrays at the speed of memory.

What is parallel: strips of each array. What is vectorised: a strip's elements.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from operator import itemgetter
from typing import Any

import numpy as np
from tvm import tirx
from tvm.script.ir_builder import tirx as T
from tvm.tirx import PrimFunc, const

from sparsetrain import runtime
from sparsetrain.kernels.builder import buffer, extents, kernel
from sparsetrain.kernels.llvm.select_array import each_in_turn, number_of, one_of
from sparsetrain.optim.cuda import arrays as cuda_arrays
from sparsetrain.optim.kernel_parts import flat
from sparsetrain.runtime import NDArray
from sparsetrain.runtime.compiling import target_kernel
from sparsetrain.runtime.device_pool import scratch_tensor
from sparsetrain.runtime.tensors import target_of

STRIPS = 16
LANES = 64  # four vectors of AVX-512: their maxima do not wait for one another

# Dtype -> integers as wide, and the exponent field in them.
_EXPONENTS = {"float32": ("int32", 0x7F800000), "float64": ("int64", 0x7FF0000000000000)}

Kind = tuple[str, int]  # dtype and number of axes
Body = Callable[[Sequence[Any], Any], None]


class Search:
    """A search in arrays of the same kinds, again and again.

    Parameters
    ----------
    like : sequence of Tensor or None
        For each array, what it must have the shape and dtype of; the kernel compares them.
    """

    def __init__(self, like: Sequence[NDArray | None]) -> None:
        self._like = [array for array in like if array is not None]
        self._has_like = tuple(array is not None for array in like)
        self._found: NDArray | None = None

    def __call__(self, arrays: Sequence[NDArray]) -> list[int]:
        """Places of the arrays that hold NaN or infinity; float32 and float64."""
        if self._found is None:
            kinds = tuple((array.dtype, len(array.shape)) for array in arrays)
            self._run = _kernel(target_of(arrays[0]), kinds, self._has_like)
            self._found = scratch_tensor((len(arrays), STRIPS), "int32", arrays[0])
        self._run(*arrays, *self._like, self._found)
        strips = runtime.as_numpy(self._found)
        return np.flatnonzero(strips.any(axis=1)).tolist() if strips.any() else []


def which_nonfinite(arrays: Sequence[NDArray]) -> list[int]:
    """Places of the arrays that hold NaN or infinity; float32 and float64, any shapes."""
    return Search([None] * len(arrays))(arrays) if arrays else []


def nonfinite_kernel(
    kinds: Sequence[Kind], like: Sequence[bool] = (), search: Body | None = None
) -> PrimFunc:
    """Arguments: the arrays, then found (K, STRIPS) int32, not 0 where a strip is not finite.

    Between them, for each array that has one in `like`, another that must have its shape. `search`
    writes what looks at all arrays, each seen as (1, n); the CPU's by default.
    """
    with kernel() as built:
        shapes = [extents(rank) for _, rank in kinds]
        arrays = [
            buffer(f"values{n}", shape, dtype)
            for n, (shape, (dtype, _)) in enumerate(zip(shapes, kinds, strict=True))
        ]
        for n, _ in filter(itemgetter(1), enumerate(like)):
            buffer(f"like{n}", shapes[n], kinds[n][0])
        found = buffer("found", (len(kinds), STRIPS), "int32")
        (search or _in_strips)([flat(array) for array in arrays], found)
    return built.get()


def _in_strips(arrays: Sequence[Any], found: Any) -> None:
    """The arrays of each dtype in turn, all in one launch; what they leave is added up after it."""
    wrong = T.alloc_buffer((len(arrays), STRIPS, LANES), "int32", scope="global")
    with T.parallel(0, STRIPS) as strip:
        for dtype in dict.fromkeys(str(array.dtype) for array in arrays):
            places = [n for n, array in enumerate(arrays) if str(array.dtype) == dtype]
            with each_in_turn(len(places)) as number:
                values = one_of([arrays[n] for n in places], number)
                _search(values, strip, wrong, number_of(places, number))
    with T.serial(0, len(arrays)) as n, T.serial(0, STRIPS) as strip:
        T.buffer_store(found, const(0, "int32"), [n, strip])
        with T.serial(0, LANES) as lane:
            T.buffer_store(found, found[n, strip] | wrong[n, strip, lane], [n, strip])


def _search(values: Any, strip: Any, wrong: Any, place: Any) -> None:
    """A strip of a flat array (1, n): note whether what each lane saw was not finite."""
    integer, exponent = _EXPONENTS[str(values.dtype)]
    size, whole = values.shape[1], const(exponent, integer)

    def field(place: Any) -> Any:
        return T.reinterpret(integer, values[0, place]) & whole

    largest = T.alloc_local((LANES,), integer)
    groups = T.Bind(tirx.floordiv(size, LANES))
    first = T.Bind(tirx.floordiv(strip * groups, STRIPS))
    end = T.Bind(tirx.floordiv((strip + 1) * groups, STRIPS))
    with T.vectorized(0, LANES) as lane:
        T.buffer_store(largest, const(0, integer), [lane])
    with T.serial(0, end - first) as group, T.vectorized(0, LANES) as lane:
        bits = field((first + group) * LANES + lane)
        T.buffer_store(largest, tirx.max(largest[lane], bits), [lane])
    with T.If(strip == 0), T.Then(), T.serial(0, tirx.floormod(size, LANES)) as i:
        T.buffer_store(largest, tirx.max(largest[0], field(groups * LANES + i)), [0])
    with T.vectorized(0, LANES) as lane:
        T.buffer_store(wrong, tirx.Cast("int32", largest[lane] == whole), [place, strip, lane])


_kernel = target_kernel(
    "check for NaN and infinity",
    llvm=nonfinite_kernel,
    cuda=partial(nonfinite_kernel, search=cuda_arrays.search_all),
)
