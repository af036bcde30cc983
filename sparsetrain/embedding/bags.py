# SPDX-License-Identifier: Apache-2.0
"""Placement of bags in a program's inputs: like `placing`, with one kernel call per feature.

The features' ids and bag starts are placed one feature after the other.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from tvm import tirx
from tvm.script.ir_builder import tirx as T
from tvm.tirx import PrimFunc, const

from sparsetrain import runtime
from sparsetrain.embedding.placing import STRIPS, Room, memory_of, share
from sparsetrain.kernels.builder import buffer, extents, kernel, pointer, scalar
from sparsetrain.runtime.compiling import host_kernel
from sparsetrain.runtime.tensors import address_of, reshape_view
from sparsetrain.system.locks import new_lock


class Bags(NamedTuple):
    """The ids of one feature in a batch, like `sparsetrain.data.Ragged`, with any stride."""

    ids: np.ndarray
    offsets: np.ndarray
    weights: np.ndarray | None = None


class ColumnPlacing:
    """Places the ids of one feature at a time, with any number of ids per row."""

    def __init__(self) -> None:
        self._outside = runtime.zeros((STRIPS + 1,), "int32")
        self._found: Any = runtime.as_numpy(self._outside, writable=True)
        self._lock = new_lock()  # protects the flags of ids out of range

    def ids(
        self, name: str, ids: np.ndarray, rows: int, dtype: str, room: Room | None
    ) -> runtime.NDArray | None:
        """Return a copy of ids of any shape; None if one is outside [0, `rows`)."""
        ids = ids if ids.ndim == 1 else np.ascontiguousarray(ids)
        placed = memory_of(room, name, ids.shape, dtype)
        flat = reshape_view(placed, (ids.size,))
        given = Bags(ids.reshape(-1), _NO_OFFSETS)
        return placed if self.bags([given], [0], [rows], [flat], room is None) else None

    def bags(
        self,
        bags: Sequence[Any],
        first_rows: Sequence[int],
        rows: Sequence[int],
        placed: Sequence[runtime.NDArray],
        parallel: bool,
    ) -> bool:
        """Write the rows of all features in order, and offsets and weights if requested.

        Returns whether all ids are inside their tables.
        """
        dtype = str(placed[0].dtype)
        run = _column_kernel(dtype, len(placed), parallel)
        before = 0
        with self._lock:
            self._found[STRIPS] = 0
            for number, (bag, first, limit) in enumerate(zip(bags, first_rows, rows, strict=True)):
                ids = _of_dtype(bag.ids, np.int64)
                held = [ids, _of_dtype(bag.offsets, np.int64), bag.weights][: len(placed)]
                held[1:] = map(np.ascontiguousarray, held[1:])
                if ids.strides[0] % ids.itemsize:  # a field of packed records is not aligned
                    ids = held[0] = ids.copy()
                count, stride = len(ids), ids.strides[0] // ids.itemsize
                numbers = count, stride, int(first), int(limit), before
                edges = (len(held[1]) - 1, number) if len(placed) > 1 else ()
                run(*map(address_of, held), *placed, self._outside, *numbers, *edges)
                before += count
            return not self._found[STRIPS]


class BagPlacing:
    """Places bags of ids in the rows of a storage.

    Parameters
    ----------
    first_rows, rows, dtype
        As in `Placing`.
    names : sequence of str
        Names of the results: rows, offsets and, if ids have weights, weights.
    """

    def __init__(
        self,
        first_rows: np.ndarray,
        rows: Any,
        dtype: str,
        names: Sequence[str] = ("rows", "offsets"),
    ) -> None:
        self._first, self._rows = first_rows.tolist(), [*rows]
        self._dtype, self._names = dtype, names
        self._columns = ColumnPlacing()

    def __call__(
        self, ids: np.ndarray | Sequence[Any], room: Room | None = None
    ) -> dict[str, runtime.NDArray] | None:
        """Return the result of `EmbeddingBagCollection.locate`: rows, offsets and weights.

        Return None if an id is outside its table, or if weights are missing or unexpected. `room`
        is as in `Placing`.
        """
        bags = _one_each(ids) if isinstance(ids, np.ndarray) else ids
        if any((bag.weights is not None) != (len(self._names) > 2) for bag in bags):
            return None
        total, edges = sum(len(bag.ids) for bag in bags), sum(len(bag.offsets) - 1 for bag in bags)
        kinds = ((total,), self._dtype), ((edges + 1,), "int64"), ((total,), "float32")
        named = zip(self._names, kinds, strict=False)
        placed = {name: memory_of(room, name, *kind) for name, kind in named}
        arrays = [*placed.values()]
        inside = self._columns.bags(bags, self._first, self._rows, arrays, room is None)
        return placed if inside else None


_NO_OFFSETS = np.zeros(1, np.int64)


def _one_each(ids: np.ndarray) -> list[Bags]:
    """Convert single ids (B, F) to bags."""
    offsets = np.arange(len(ids) + 1)
    return [Bags(column, offsets) for column in ids.T]


def _of_dtype(array: np.ndarray, dtype: Any) -> np.ndarray:
    return array if array.dtype == dtype else array.astype(dtype)


def column_kernel(dtype: str, arrays: int, parallel: bool = True) -> PrimFunc:
    """Return the kernel that places one feature's ids, weights and bag starts.

    It sets ``placed[before + n] = first + ids[stride * n]``; with 2 `arrays` also ``offsets[place *
    B + b] = before + starts[b]`` for b in [0, B]; with 3 also ``copy[before + n] = weights[n]``.

    Arguments: the addresses of ids int64, starts (B + 1,) int64 and weights (N,) float32, the first
    `arrays` of them; as many output arrays; outside (STRIPS + 1,) int32: its last entry becomes
    nonzero if an id is not in [0, rows), and is never reset; count, stride, first, rows, before;
    with bags, also B and place, the number of the feature.
    """
    with kernel() as built:
        total, edges = extents(2)
        kinds = [("ids", "int64"), ("starts", "int64"), ("weights", "float32")][:arrays]
        sources = [pointer(*kind) for kind in kinds]
        wanted = [("placed", total, dtype), ("offsets", edges, "int64"), ("copy", total, "float32")]
        written = [buffer(name, (size,), kind) for name, size, kind in wanted[:arrays]]
        outside = buffer("outside", (STRIPS + 1,), "int32")
        names = ("count", "stride", "first", "rows", "before")
        count, stride, first, rows, before = (scalar(name, "int64") for name in names)
        bags = [scalar(name, "int64") for name in ("batch", "place")] if arrays > 1 else []
        ids = T.decl_buffer((count * stride,), "int64", data=sources[0])
        with (T.parallel if parallel else T.serial)(0, STRIPS) as strip:
            wrong = T.alloc_local((1,), "int32")
            T.buffer_store(wrong, const(0, "int32"), [0])
            with share(count, strip) as n:
                id_ = T.Bind(ids[stride * n])
                beyond = tirx.Or(id_ < 0, id_ >= rows)
                T.buffer_store(wrong, wrong[0] | tirx.Cast("int32", beyond), [0])
                T.buffer_store(written[0], tirx.Cast(dtype, first + id_), [before + n])
            T.buffer_store(outside, wrong[0], [strip])
            if bags:
                batch, place = bags
                starts = T.decl_buffer((batch + 1,), "int64", data=sources[1])
                with share(batch + 1, strip) as b:
                    T.buffer_store(written[1], before + starts[b], [place * batch + b])
            if arrays > 2:
                weights = T.decl_buffer((count,), "float32", data=sources[2])
                with share(count, strip) as n:
                    T.buffer_store(written[2], weights[n], [before + n])
        with T.serial(0, STRIPS) as strip:
            T.buffer_store(outside, outside[STRIPS] | outside[strip], [STRIPS])
    return built.get()


_column_kernel = host_kernel("places of bags", column_kernel)
