# SPDX-License-Identifier: Apache-2.0
"""CUDA kernels that make a `CoalescePlan`: one launch for few ids, about 8 for many."""

from __future__ import annotations

from typing import Any

from tvm import tirx
from tvm.script.ir_builder import tirx as T
from tvm.tirx import PrimFunc

from sparsetrain.backends.cuda.sparse.parts import barrier, blocks_of_threads
from sparsetrain.backends.cuda.sparse.segments import (
    PlanArrays,
    Sorted,
    Stretch,
    count_runs,
    write_runs,
)
from sparsetrain.backends.cuda.sparse.sort import Carried, Ids, count_digits, send_to_places
from sparsetrain.backends.cuda.sparse.tile import DIGITS, SORTERS, Shared, Tile
from sparsetrain.kernels.builder import buffer, extents, kernel


class _Arguments:
    """The first arguments of both kernels: ids (N,), keys and positions (2, N), and the plan."""

    def __init__(self, index_dtype: str) -> None:
        (self.count,) = extents(1)
        ids = buffer("ids", (self.count,), index_dtype)
        keys = buffer("keys", (2, self.count), index_dtype)
        positions = buffer("positions", (2, self.count), "int32")
        rows = buffer("rows", (self.count,), index_dtype)
        offsets = buffer("offsets", (self.count + 1,), "int32")
        self.plan = PlanArrays(rows, offsets, buffer("counts", (2,), "int32"))
        self._given = ids, keys, positions

    def numbers(self) -> tuple[Ids, Sorted]:
        """Declare the scalars, which come last: passes, bits of a digit, rows of the table."""
        passes, digit_bits = T.arg("passes", T.int32()), T.arg("digit_bits", T.int32())
        num_rows = T.arg("num_rows", T.int64())
        return Ids(*self._given, passes, digit_bits), Sorted(self._given[1], num_rows)


def short_plan_kernel(index_dtype: str) -> PrimFunc:
    """Return the kernel that plans at most `TILE` ids in one thread block.

    Arguments: ids (N,), keys (2, N), positions (2, N) int32, rows (N,), offsets (N + 1,) int32,
    counts (2,) int32; passes, digit_bits, num_rows. The kernel writes the plan: the order to
    ``positions[0]``, U unique rows to the first U elements of `rows`, their offsets to the first
    U + 1 of `offsets`, U to ``counts[0]``, and the number of invalid ids to ``counts[1]``.
    """
    with kernel("short_plan") as built:
        arguments = _Arguments(index_dtype)
        ids, found = arguments.numbers()
        with blocks_of_threads(1, SORTERS, "int32") as (_, thread):
            arrays, carried = Shared(), Carried(ids)
            count = T.Bind(tirx.Cast("int32", arguments.count))
            rows = T.Bind(tirx.ceildiv(count, SORTERS))
            tile = Tile(arrays, thread, rows, count)
            carried.load(tile, lambda place: ids.ids[place], lambda place: place)
            with T.serial(0, ids.passes) as number:
                tile.order(lambda row: ids.digit(number, carried.key(row)))
                carried.exchange(tile, striped=False)

            def put_away(row: Any, place: Any) -> None:
                T.buffer_store(ids.keys, carried.key(row), [0, place])
                T.buffer_store(ids.positions, carried.position(row), [0, place])

            tile.each(put_away)
            barrier()
            stretch = Stretch(found, tirx.const(0, "int64"), rows, thread)
            write_runs(stretch, arguments.plan, tirx.const(0, "int64"))
    return built.get()


def plan_kernel(index_dtype: str) -> PrimFunc:
    """Return the kernel that plans any number of ids; it has one block per row of `tallies`.

    It has the arguments of `short_plan_kernel`, and before the scalars the int32 scratch arrays
    tallies (blocks, 512) and found (2, blocks). A last scalar is the number of rows in a block; a
    row is 1,024 ids.
    """
    with kernel("plan") as built:
        arguments = _Arguments(index_dtype)
        (blocks,) = extents(1)
        tallies = buffer("tallies", (blocks, DIGITS), "int32")
        begun = buffer("found", (2, blocks), "int32")
        ids, found = arguments.numbers()
        rows = T.arg("rows_of_block", T.int32())

        def stretch_of(block: Any) -> tuple[Any, Any, Any]:
            return block, T.Bind(block * rows * SORTERS), rows

        with T.serial(0, ids.passes) as number:
            with blocks_of_threads(blocks, SORTERS, "int32") as (block, thread):
                count_digits(ids, number, stretch_of(block), thread, tallies)
            with blocks_of_threads(blocks, SORTERS, "int32") as (block, thread):
                send_to_places(ids, number, stretch_of(block), thread, tallies)
        with blocks_of_threads(blocks, SORTERS, "int32") as (block, thread):
            count_runs(Stretch(found, stretch_of(block)[1], rows, thread), block, begun)
        with blocks_of_threads(blocks, SORTERS, "int32") as (block, thread):
            stretch = Stretch(found, stretch_of(block)[1], rows, thread)
            write_runs(stretch, arguments.plan, block, begun)
    return built.get()
