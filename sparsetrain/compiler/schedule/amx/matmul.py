# SPDX-License-Identifier: Apache-2.0
"""bfloat16 products on CPU tile registers (AMX), many times as fast as float32 products.

This works like `bf16/matmul.py`, but one call sums 32 x 32 results over all of `k` in tile
registers and stores them in a small array. The epilogue reads this array, rounds if needed, and
writes the results. Operands are padded with zeros to a multiple of 32 in `k`.

A tile is 32 rows by a panel of 32 columns. A parallel task computes some tiles of rows times all
column panels. If the right operand fits into half of the second-level cache, the outer loop is over
tiles of rows, so results and masks are accessed row by row. Otherwise it is over panels, so that
each panel is fetched once for all tiles of rows. If both operands have `k` as rows in memory (TN),
`k` is the batch: its length is unknown and large. Such a task computes only some of the panels if
there would otherwise be too few tasks.

Registers are configured when a task begins and released when it ends. One thread sums each element
over `k` in order, so results have the same bits for any number of threads.
"""

from collections.abc import Callable
from math import prod
from typing import NamedTuple

from tvm import s_tir, tirx
from tvm.s_tir.dlight.analysis import SBlockInfo
from tvm.s_tir.schedule import LoopRV, SBlockRV
from tvm.target import Target

from sparsetrain.compiler.schedule.amx.helpers import BEGIN_AND_END, PACKING, PRODUCT, SIDE
from sparsetrain.compiler.schedule.amx.pack import interleave_panel, pack_left, round_left
from sparsetrain.compiler.schedule.bf16.helpers import HELPERS
from sparsetrain.compiler.schedule.bf16.pack import (
    address,
    at,
    int32,
    is_stored_in_steps,
    pack_right,
    rewrite,
    to_steps,
)
from sparsetrain.compiler.schedule.bf16.store import store_masked, store_rounded
from sparsetrain.compiler.schedule.bf16.tiling import FEWEST_TASKS, LANES, MOST_TILES, best_task
from sparsetrain.compiler.schedule.half_products import HalfProduct, match_half_product, prepare
from sparsetrain.compiler.schedule.product import Product
from sparsetrain.compiler.schedule.rule import CpuRule, vectorize_if_whole
from sparsetrain.runtime.host import has_amx_tiles

# Tiles of rows per task if the number of rows is symbolic (4 tiles are 128 rows).
_TILES = 4
# Half of a second-level cache.
_NEAR_BYTES = 1 << 20
# Weights in the cost that `best_task` minimizes.
_COST_OF_PACKING = 5.0
_COST_OF_FETCHING = 1.0


class Shape(NamedTuple):
    """Tiles and panels of a task (None: all panels), and whether the outer loop is over tiles."""

    tiles: int
    panels: int | None
    by_rows: bool = False


def choose_shape(product: Product) -> Shape:
    """Choose the shape for a product; any extent may be symbolic."""
    if not isinstance(product.rows, int):
        return Shape(_TILES, None, _is_near(product))
    tiles = -(-product.rows // SIDE)
    if not isinstance(product.columns, int):
        return Shape(max(1, min(MOST_TILES, tiles // FEWEST_TASKS)), None)
    panels = -(-product.columns // SIDE)
    return Shape(*best_task(tiles, panels, _COST_OF_PACKING, _COST_OF_FETCHING))


def _is_near(product: Product) -> bool:
    """Whether the right operand fits into half of a second-level cache."""
    extents = product.columns, product.contracted
    return all(isinstance(n, int) for n in extents) and 2 * prod(extents) <= _NEAR_BYTES


class TileMatmul(CpuRule):
    """Schedule for kernels that round and multiply two matrices, with an elementwise epilogue."""

    def schedule(
        self, sch: s_tir.Schedule, blocks: list[SBlockInfo], target: Target
    ) -> s_tir.Schedule | None:
        """Pad, pack, tile and fuse; return None without such a product or without AMX."""
        if not has_amx_tiles(target):
            return None
        found = match_half_product(sch, blocks)
        if found is None:
            return None
        _schedule(sch, found)
        return sch


def _schedule(sch: s_tir.Schedule, found: HalfProduct) -> None:
    product, (left_stage, _), _ = found
    block = product.info.block_rv
    shape = choose_shape(product)
    in_place = is_stored_in_steps(sch, product.left, left_stage, SIDE)
    left, right, epilogue = prepare(sch, found, [SIDE * shape.tiles, SIDE, SIDE], in_place)
    loops = _tile_loops(sch, block, shape, left)
    to_steps(sch, right, product.right, SIDE)
    if left is not None:
        to_steps(sch, left, product.left, SIDE, SIDE)
    sch.reverse_compute_at(epilogue, loops.tile)
    vectorize_if_whole(sch, sch.get_loops(epilogue)[-1], LANES)
    if left is not None:
        pack = round_left if product.left.contracted_is_contiguous else pack_left
        pack(sch, left)
    pack_right(sch, right, product.right, SIDE, interleave_panel)
    sch.parallel(loops.task)
    sch.annotate(loops.task, "pragma_import_llvm", HELPERS + BEGIN_AND_END + PRODUCT + PACKING)
    store_rounded(sch, epilogue, product.columns)
    store_masked(sch, epilogue, product.columns)
    rewrite(sch, sch.blockize(loops.row), _product(product, in_place))
    _configure(sch, loops.task)


class _TileLoops(NamedTuple):
    task: LoopRV
    tile: LoopRV
    row: LoopRV


def _tile_loops(
    sch: s_tir.Schedule, block: SBlockRV, shape: Shape, left: SBlockRV | None
) -> _TileLoops:
    """Build the loops: task; row tile and column panel, in either order; row, column, `k`.

    If `left`, the block that packs the left operand, is given, it is moved into the task's loop.
    """
    i, j, k = sch.get_loops(block)
    task, tile, row = sch.split(i, [None, shape.tiles, SIDE])
    panel, column = sch.split(j, [None, SIDE])
    if shape.panels is not None:
        group, panel = sch.split(panel, [None, shape.panels])
        sch.reorder(task, group, panel, tile, row, column, k)
        task = sch.fuse(task, group)
    outer, inner = (tile, panel) if shape.by_rows else (panel, tile)
    sch.reorder(task, outer, inner, row, column, k)
    if left is not None:
        sch.compute_at(left, task)
    return _TileLoops(task, inner, row)


def _product(product: Product, in_place: bool) -> Callable[[s_tir.SBlock], tirx.Stmt]:
    """Return a function that replaces a block by one call for 32 x 32 sums over all of `k`."""

    def body(block: s_tir.SBlock) -> tirx.Stmt:
        sums = block.writes[0].source
        row, column = at(block.writes[0])
        left, right = (r.source for r in block.reads if not r.source.same_as(sums))
        zero = tirx.const(0, "int64")
        steps, stride, step = _places(left, in_place)
        of_row, of_column = [tirx.floordiv(row, SIDE)], [tirx.floordiv(column, SIDE)]
        call = tirx.call_extern(
            "int32",
            "sparsetrain_amx_product",
            address(sums, [row, column]),
            address(left, [row, zero] if in_place else [*of_row, zero, zero]),
            stride,
            step,
            address(right, [*of_column, zero, zero]),
            steps,
            int32(product.rows - row),
            int32(product.columns - column),
            tirx.const(int(in_place), "int32"),
        )
        ends = [
            tirx.BufferLoad(sums, [row + SIDE - 1, column + SIDE - 1]),
            tirx.BufferLoad(right, of_column + _last(right)),
            *([] if in_place else [tirx.BufferLoad(left, of_row + _last(left))]),
        ]
        # TVM 0.27 shrinks an array to the elements that it sees accessed, so access the last.
        return tirx.SeqStmt([*map(tirx.Evaluate, ends), tirx.Evaluate(call)])

    return body


def _last(packed: tirx.Var) -> list[tirx.Expr]:
    return [extent - 1 for extent in packed.ty.shape[1:]]


def _places(left: tirx.Var, in_place: bool) -> tuple[tirx.Expr, tirx.Expr, tirx.Expr]:
    """Return the number of steps along `k`, and the left operand's row and step stride in bytes."""
    _, second, *_ = left.ty.shape
    line, square = tirx.const(2 * SIDE, "int64"), tirx.const(2 * SIDE * SIDE, "int64")
    return (second // SIDE, second * 2, line) if in_place else (second, line, square)


def _configure(sch: s_tir.Schedule, task: LoopRV) -> None:
    """Configure the tile registers at the start of a task and release them at its end."""
    loop = sch.get(task)
    begin, end = (
        tirx.Evaluate(tirx.call_extern("int32", f"sparsetrain_amx_{name}"))
        for name in ("begin", "end")
    )
    body = tirx.SeqStmt([begin, loop.body, end])
    new = tirx.For(loop.loop_var, loop.min, loop.extent, loop.kind, body, None, loop.annotations)
    sch.state.replace(sch.get_sref(task), new, {})
