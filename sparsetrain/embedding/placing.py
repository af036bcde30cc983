# SPDX-License-Identifier: Apache-2.0
"""From the ids of a batch to rows of a storage, checked on the way: what a step begins with.

One pass over (B, F) ids, which NumPy needs four for. The ids are read where the batch holds them;
the kernel asks for no more than the alignment of their dtype.

What is parallel: strips of the batch.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
from tvm import tirx
from tvm.script.ir_builder import IRBuilder
from tvm.script.ir_builder import tirx as T
from tvm.tirx import PrimFunc, const

from sparsetrain import runtime
from sparsetrain.kernel_builder import buffer, extents, kernel

STRIPS = 16


class Placing:
    """Places the ids of some features, one id each.

    Parameters
    ----------
    first_rows : (F,) int64
        First row of each feature's table in the storage.
    rows : sequence of F int
        Rows of each feature's table.
    dtype : {"int32", "int64"}
        Of the result.
    """

    def __init__(self, first_rows: np.ndarray, rows: Any, dtype: str) -> None:
        self._first = runtime.as_tensor(np.asarray(first_rows, np.int64))
        self._rows = runtime.as_tensor(np.asarray(rows, np.int64))
        self._outside = runtime.zeros((STRIPS,), "int32")
        self._found = runtime.as_numpy(self._outside)
        self._dtype = dtype

    def __call__(self, ids: np.ndarray) -> runtime.NDArray | None:
        """Rows (B, F) of ids (B, F) int64 in C order; None if an id is outside its table."""
        placed = runtime.empty(ids.shape, self._dtype)
        _kernel(self._dtype)(runtime.lent(ids), self._first, self._rows, placed, self._outside)
        return None if self._found.any() else placed


def placing_kernel(dtype: str) -> PrimFunc:
    """``placed[b, f] = first[f] + ids[b, f]``, and for each strip whether an id is outside.

    Arguments: ids (B, F) int64 with no more than its own alignment, first, rows (F,) int64,
    placed (B, F), outside (STRIPS,) int32.
    """
    with kernel() as built:
        batch, features = extents(2)
        handle = T.arg("ids", T.handle())
        matched = T.match_buffer(handle, (batch, features), "int64", align=8, offset_factor=1)
        ids = IRBuilder.name("ids", matched)
        first, rows = (buffer(name, (features,), "int64") for name in ("first", "rows"))
        placed = buffer("placed", (batch, features), dtype)
        outside = buffer("outside", (STRIPS,), "int32")
        with T.parallel(0, STRIPS) as strip:
            wrong = T.alloc_local((1,), "int32")
            T.buffer_store(wrong, const(0, "int32"), [0])
            begin = T.Bind(batch * strip // STRIPS)
            with T.serial(0, T.Bind(batch * (strip + 1) // STRIPS) - begin) as example:
                b = T.Bind(begin + example)
                with T.serial(0, features) as f:
                    beyond = tirx.Or(ids[b, f] < 0, ids[b, f] >= rows[f])
                    T.buffer_store(wrong, wrong[0] | tirx.Cast("int32", beyond), [0])
                    T.buffer_store(placed, tirx.Cast(dtype, first[f] + ids[b, f]), [b, f])
            T.buffer_store(outside, wrong[0], [strip])
    return built.get()


@cache
def _kernel(dtype: str) -> Any:
    return runtime.compile_kernel(placing_kernel(dtype), runtime.host_target(), "places of ids")
