# SPDX-License-Identifier: Apache-2.0
"""Exchange of a batch's rows between the ranks that look them up and their owners.

A rank requests each row once, however often it looks it up, and receives the rows in the order of
its requests. Gradients are summed per row and sent back the same way. So traffic depends only on
the number of unique rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from sparsetrain import runtime
from sparsetrain.embedding.lookup_kernels import lookup_kernel
from sparsetrain.errors import ConfigError
from sparsetrain.parallel.comm import Comm, spans, tree
from sparsetrain.parallel.exchange_kernels import find_keys, find_places
from sparsetrain.parallel.sharding_plan import StoragePlan
from sparsetrain.runtime import NDArray
from sparsetrain.runtime.compiling import host_kernel
from sparsetrain.runtime.tensors import reshape_view, view_as
from sparsetrain.sparse_tensor import CoalescePlan, RowSparse
from sparsetrain.sparse_tensor.coalesce import make_plan, segment_sum

_lookup = host_kernel("lookup", lookup_kernel)


class Room:
    """Buffers that are reused from step to step and grow as needed."""

    def __init__(self) -> None:
        self._blocks: dict[str, NDArray] = {}

    def __call__(self, name: str, shape: tuple[int, ...], dtype: str) -> NDArray:
        """Return a tensor in the buffer of this name; its old contents will be overwritten."""
        size = max(1, int(np.prod(shape))) * np.dtype(dtype).itemsize
        block = self._blocks.get(name)
        if block is None or block.size(0) < size:
            block = self._blocks[name] = runtime.empty((size + size // 4,), "uint8")
        return view_as(block, shape, dtype)


class Exchange:
    """Fetches rows of one storage and returns their gradients; one object serves every batch.

    Parameters
    ----------
    comm : Comm
    plan : StoragePlan
    stored : str
        Dtype of the table.
    """

    def __init__(self, comm: Comm, plan: StoragePlan, stored: str = "float32") -> None:
        self._stored = stored
        self._comm, self._plan, self._room = comm, plan, Room()
        ranks = range(plan.size)
        slices = [plan.slices(rank) for rank in ranks]
        first = [[slices[rank][table.name].start for rank in ranks] for table in plan.tables]
        self._tables = tuple(
            runtime.as_tensor(np.array(values, np.int64))
            for values in (
                [table.rows.start for table in plan.tables],
                [table.owner for table in plan.tables],
                first,
            )
        )
        self._width, self._size, self._stride = plan.width, plan.size, plan.stride
        self._num_rows = plan.rows(comm.rank)
        self._keys = plan.size * plan.stride
        self._dtype = "int32" if self._keys < 2**31 else "int64"
        self._arrays = 0  # given to `place`; above 1, gradients are not in the order of entries
        # For the current batch: the plan of its entries; the numbers of rows requested from each
        # rank and by each rank.
        self.entries: CoalescePlan
        self.requested = self.answered = np.zeros(plan.size, np.int64)
        self.rows: NDArray  # the rows that each rank requested from this rank, rank by rank

    def place(self, rows: Sequence[Any]) -> list[NDArray]:
        """Find the owners of looked-up rows; return positions among the rows to be received."""
        arrays = [a if isinstance(a, np.ndarray) else runtime.as_numpy(a) for a in rows]
        flat = [each.reshape(-1) for each in arrays]
        dtype = str(arrays[0].dtype) if arrays else "int32"
        count, self._arrays = sum(map(len, flat)), len(flat)
        whole = self._room("rows", (count,), dtype)
        if arrays:
            np.concatenate(flat, out=runtime.as_numpy(whole, writable=True))
        keys = self._room("keys", (count,), self._dtype)
        size, stride = self._size, self._stride
        find_keys(dtype, self._dtype, size, stride)(whole, *self._tables, keys)
        self.entries = make_plan(keys, self._keys)
        places = self._room("places", (count,), dtype)
        find_places(dtype)(self.entries.order, self.entries.offsets, places)
        edges = np.searchsorted(runtime.as_numpy(self.entries.rows), stride * np.arange(size + 1))
        self.requested = np.diff(edges)
        if len(arrays) < 2:
            return [reshape_view(places, each.shape) for each in arrays]
        found = np.split(runtime.as_numpy(places), np.cumsum([len(each) for each in flat])[:-1])
        pairs = zip(found, arrays, strict=True)
        return [runtime.as_tensor(part.reshape(each.shape)) for part, each in pairs]

    def ask(self, answered: np.ndarray) -> NDArray:
        """Request the needed rows; return the numbers of the rows requested from this rank.

        `answered` is the number of rows that each rank requests from this rank.
        """
        self.answered = answered
        unique = runtime.as_numpy(self.entries.rows)
        of = np.repeat(self._stride * np.arange(self._size), self.requested)
        local = (unique - of).astype(self._dtype, copy=False)
        self.rows = self._room("requested", (int(answered.sum()),), self._dtype)
        out = runtime.as_numpy(self.rows, writable=True)
        self._comm.exchange(local, self.requested.tolist(), out, answered.tolist(), "ids")
        return self.rows

    def fetch(self, table: NDArray) -> NDArray:
        """Return the requested rows (U, D) float32, and send other ranks their rows of `table`."""
        width = self._width
        own = self._room("own", (self._served, width), "float32")
        _lookup(width, self._stored, self._dtype)(table, self.rows, own)
        # At least one row, which may stay unread, since kernels accept no empty table.
        rows = self._room("came", (max(1, int(self.requested.sum())), width), "float32")
        return self._send(own, self.answered, rows, self.requested, "rows")

    def give(self, gradients: Sequence[RowSparse | None]) -> RowSparse:
        """Send gradients of this rank's parts to the rows' owners; return those of its own rows.

        In the result a row has at most two entries, since the optimizer computes the tree's last
        sum.
        """
        values = self._sum_of_parts(gradients)
        came = self._room("gradients", (self._served, self._width), "float32")
        return self._sum_of_ranks(
            self._send(values, self.requested, came, self.answered, "gradients of rows")
        )

    def _sum_of_parts(self, gradients: Sequence[RowSparse | None]) -> NDArray:
        there = [each for each in gradients if each is not None]
        if len(there) == self._arrays == 1:
            return segment_sum(self.entries, there[0].values, there[0].source)
        total = tree([each and each.coalesce() for each in gradients], _joined)
        if total is None:
            return runtime.empty((0, self._width), "float32")
        if int(total.values.shape[0]) != self.requested.sum():
            raise ConfigError(
                f"parallel: some rows of {self._plan.tables[0].name} are looked up without a "
                "gradient: train this model in one process"
            )
        return total.values

    def _sum_of_ranks(self, values: NDArray) -> RowSparse:
        num_rows = self._num_rows
        if self._size <= 2:
            return RowSparse(self.rows, values, num_rows)
        rows, numbers = runtime.as_numpy(self.rows), runtime.as_numpy(values)
        parts: list[Any] = [
            RowSparse.from_numpy(rows[part], numbers[part], num_rows)
            for part in spans(self.answered)
        ]
        while len(parts) > 2:
            parts = [tree(parts[n : n + 2], _joined) for n in range(0, len(parts), 2)]
        return parts[0] + parts[1]

    @property
    def _served(self) -> int:
        return int(self.answered.sum())

    def _send(
        self, array: NDArray, counts: Any, out: NDArray, received: Any, purpose: str
    ) -> NDArray:
        if self._size == 1 and self._served:
            return array
        given, taken = runtime.as_numpy(array), runtime.as_numpy(out, writable=True)
        self._comm.exchange(given, counts.tolist(), taken, received.tolist(), purpose)
        return out


def _joined(one: RowSparse, other: RowSparse) -> RowSparse:
    return (one + other).coalesce()
