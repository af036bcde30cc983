# SPDX-License-Identifier: Apache-2.0
"""Placement of a batch in a program's inputs: ids become rows, floats are copied to aligned memory.

A step begins with the placement, on cold caches, where each NumPy call takes ten times its usual
time. So one kernel does everything in one pass, including the check of ids. The kernel reads the
batch's arrays in place, by their addresses, and requires only the alignment of their dtype.

Strips of the batch run in parallel, unless the kernel must use a single thread.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import MappingProxyType
from typing import Any

import numpy as np
from tvm import tirx
from tvm.script.ir_builder import tirx as T
from tvm.tirx import PrimFunc, const

from sparsetrain import runtime
from sparsetrain.kernels.builder import buffer, extents, kernel, pointer, scalar
from sparsetrain.runtime.compiling import host_kernel
from sparsetrain.runtime.tensors import address_of
from sparsetrain.system.locks import new_lock

STRIPS = 16

# (name, shape, dtype) -> host memory for an argument.
Room = Callable[[str, tuple[int, ...], str], runtime.NDArray]


class Placing:
    """Places the ids of features with one id per row.

    Parameters
    ----------
    first_rows : (F,) int64
        First row of each feature's table in the storage.
    rows : sequence of F int
        Rows of each feature's table.
    dtype : {"int32", "int64"}
        Dtype of the result.
    name : str
        Name of the result.
    columns : sequence of F int, optional
        Columns of the features' ids, if `ids` has more than F columns.
    """

    def __init__(
        self,
        first_rows: np.ndarray,
        rows: Any,
        dtype: str,
        name: str = "rows",
        columns: Sequence[int] | None = None,
    ) -> None:
        self._name = name
        chosen = [] if columns is None else [np.asarray(columns, np.int64)]
        self._columns = [*map(runtime.as_tensor, chosen)]
        self._first = runtime.as_tensor(np.asarray(first_rows, np.int64))
        self._rows = runtime.as_tensor(np.asarray(rows, np.int64))
        self._outside = runtime.zeros((STRIPS + 1,), "int32")
        self._found: Any = runtime.as_numpy(self._outside)
        self._dtype = dtype
        self._lock = new_lock()  # protects the flags of ids out of range

    def __call__(
        self,
        ids: np.ndarray,
        floats: Mapping[str, np.ndarray] = MappingProxyType({}),
        room: Room | None = None,
    ) -> dict[str, runtime.NDArray] | None:
        """Return rows (B, F) for ids (B, F) int64, and aligned copies of float32 arrays.

        With `columns`, ids have more than F columns. Return None if an id is outside its table. If
        `room` provides the memory, the calling thread does all the work.
        """
        placed: dict[str, runtime.NDArray] = {}
        held, addresses, ranks = [], [], []
        shape = len(ids), int(self._first.shape[0])
        for name, array in (self._name, ids), *floats.items():
            kind = (array.shape, "float32") if placed else (shape, self._dtype)
            placed[name] = memory_of(room, name, *kind)
            ranks.append(array.ndim)
            held.append(array if array.flags.c_contiguous else array.copy())
            addresses.append(address_of(held[-1]))
        run = _kernel(self._dtype, tuple(ranks[1:]), room is None, bool(self._columns))
        chosen = [*self._columns, ids.shape[1]] if self._columns else []
        with self._lock:
            run(*addresses, self._first, self._rows, *placed.values(), self._outside, *chosen)
            return None if self._found[STRIPS] else placed


def memory_of(room: Room | None, name: str, shape: tuple[int, ...], dtype: str) -> runtime.NDArray:
    """Return memory for an array: from `room` if given, else new."""
    return room(name, shape, dtype) if room else runtime.empty(shape, dtype)


@contextmanager
def share(size: Any, strip: Any) -> Iterator[Any]:
    """Loop over a strip's share of the numbers below `size`."""
    begin = T.Bind(size * strip // STRIPS)
    with T.serial(0, T.Bind(size * (strip + 1) // STRIPS) - begin) as n:
        yield T.Bind(begin + n)


def placing_kernel(
    dtype: str, ranks: Sequence[int] = (), parallel: bool = True, chooses: bool = False
) -> PrimFunc:
    """Compute ``placed[b, f] = first[f] + ids[b, f]``; flag ids out of range and copy floats.

    With `chooses`, ids are (B, C), and feature f reads column ``columns[f]``.

    Arguments: the address of ids (B, F) int64, the addresses of float32 arrays with `ranks` axes,
    first, rows (F,) int64, placed (B, F), the copies, flags outside (STRIPS + 1,) int32, one per
    strip and one for all; with `chooses`, columns (F,) int64 and C.
    """
    with kernel() as built:
        batch, features = extents(2)
        sources = [pointer("ids", "int64"), *(pointer("values", "float32") for _ in ranks)]
        first, rows = (buffer(name, (features,), "int64") for name in ("first", "rows"))
        placed = buffer("placed", (batch, features), dtype)
        copies = [buffer("copy", extents(rank), "float32") for rank in ranks]
        outside = buffer("outside", (STRIPS + 1,), "int32")
        columns = buffer("columns", (features,), "int64") if chooses else None
        given = scalar("given", "int64") if chooses else features
        ids = T.decl_buffer((batch, given), "int64", data=sources[0])
        with (T.parallel if parallel else T.serial)(0, STRIPS) as strip:
            wrong = T.alloc_local((1,), "int32")
            T.buffer_store(wrong, const(0, "int32"), [0])
            begin = T.Bind(batch * strip // STRIPS)
            with T.serial(0, T.Bind(batch * (strip + 1) // STRIPS) - begin) as example:
                b = T.Bind(begin + example)
                with T.serial(0, features) as f:
                    column = f if columns is None else T.Bind(columns[f])
                    beyond = tirx.Or(ids[b, column] < 0, ids[b, column] >= rows[f])
                    T.buffer_store(wrong, wrong[0] | tirx.Cast("int32", beyond), [0])
                    T.buffer_store(placed, tirx.Cast(dtype, first[f] + ids[b, column]), [b, f])
            T.buffer_store(outside, wrong[0], [strip])
            for source, copy in zip(sources[1:], copies, strict=True):
                _copy_share(source, copy, strip)
        T.buffer_store(outside, const(0, "int32"), [STRIPS])
        with T.serial(0, STRIPS) as strip:
            T.buffer_store(outside, outside[STRIPS] | outside[strip], [STRIPS])
    return built.get()


def _copy_share(source: Any, copy: Any, strip: Any) -> None:
    """Copy a strip's share of an array."""
    size: Any = const(1, "int64")
    for extent in copy.shape:
        size = size * extent
    values, flat = (T.decl_buffer((size,), "float32", data=data) for data in (source, copy.data))
    with share(size, strip) as n:
        T.buffer_store(flat, values[n], [n])


_kernel = host_kernel("places of ids", placing_kernel)
