# SPDX-License-Identifier: Apache-2.0
"""The CPU kernel behind a `CoalescePlan`: sort the ids, find the runs of equal ones.

It counts where a table has fewer rows than there are ids, which takes a third of the time, and
sorts digit by digit where it has more; `count_sort` says which threads do. All ways give the same
plan, to the bit.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

from tvm import tirx
from tvm.script.ir_builder import tirx as T
from tvm.tirx import PrimFunc

from sparsetrain.kernels.builder import buffer, extents, kernel, scalar
from sparsetrain.sparse_tensor.count_sort import can_count, count_sort, threads_can_count
from sparsetrain.sparse_tensor.radix_sort import radix_sort
from sparsetrain.sparse_tensor.sort_chunks import NOTES


def plan_kernel(index_dtype: str, parallel: bool = True) -> PrimFunc:
    """Unique rows of ids, and where the entries of each are.

    Arguments: ids (N,), keys (K >= 2 N,) and order (2, N) to sort in, notes (S, NOTES) int32 for
    S chunks, rows (N,), offsets (N + 1,), counts (2,), passes, bits, num_rows. `passes` digits of
    `bits` each are sorted, unless counting does.

    Row 0 of `order` receives the positions of the ids in sorted order, `rows` the unique rows,
    `offsets` where the run of each begins and the last one ends; padding (ids equal to `num_rows`)
    comes last and belongs to no run. `counts` receives the number of unique rows and the number of
    ids outside [0, num_rows], with which nothing else means anything. Without `parallel` no thread
    is started, and S is 1.
    """
    with kernel() as built:
        # A number that is known leaves no loops over chunks, half of the time of 128 ids.
        entries, room, chunks = extents(3) if parallel else (*extents(2), 1)
        a = SimpleNamespace(
            ids=buffer("ids", (entries,), index_dtype),
            keys=buffer("keys", (room,), index_dtype),
            order=buffer("order", (2, entries), "int32"),
            notes=buffer("notes", (chunks, NOTES), "int32"),
            rows=buffer("rows", (entries,), index_dtype),
            offsets=buffer("offsets", (entries + 1,), "int32"),
            counts=buffer("counts", (2,), "int32"),
            passes=tirx.Cast("int32", scalar("passes", "int64")),
            bits=tirx.Cast("int32", scalar("bits", "int64")),
            num_rows=scalar("num_rows", "int64"),
        )
        ways = [(can_count(a), lambda: count_sort(a, False))]
        if parallel:
            ways.insert(0, (threads_can_count(a), lambda: count_sort(a, True)))
        _first(ways, lambda: radix_sort(a, T.parallel if parallel else T.serial))
    return built.get()


def _first(ways: Sequence[tuple[Any, Callable[[], None]]], otherwise: Callable[[], None]) -> None:
    """Take the first way whose condition holds."""
    if not ways:
        otherwise()
        return
    (holds, take), *others = ways
    with T.If(holds):
        with T.Then():
            take()
        with T.Else():
            _first(others, otherwise)
