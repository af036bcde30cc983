# SPDX-License-Identifier: Apache-2.0
"""bfloat16 products on a CPU with dot products of pairs, twice as fast as float32 products.

The rule resembles the float32 rule (`schedule/matmul.py`), but an instruction multiplies two
adjacent numbers along `k` by two others and adds both products to a float32. So operands are laid
out in pairs, and each step of the inner loop is one call, which replaces two loops over 16 columns
and over the pair. The schedule inserts the call itself, because `Schedule.tensorize` of TVM 0.27
crashes here.

Rows are padded to whole row blocks and columns to whole panels, so inner loops need no bounds
checks. One thread sums each element over `k` in order.
"""

from typing import NamedTuple

from tvm import s_tir, tirx
from tvm.s_tir.dlight.analysis import SBlockInfo
from tvm.s_tir.schedule import LoopRV, SBlockRV
from tvm.target import Target

from sparsetrain.compiler.schedule.bf16.helpers import HELPERS
from sparsetrain.compiler.schedule.bf16.pack import (
    at,
    is_stored_in_steps,
    pack_left,
    pack_right,
    rewrite,
    round_left,
    to_steps,
)
from sparsetrain.compiler.schedule.bf16.store import store_rounded
from sparsetrain.compiler.schedule.bf16.tiling import LANES, Shape, choose_shape
from sparsetrain.compiler.schedule.half_products import HalfProduct, match_half_product, prepare
from sparsetrain.compiler.schedule.rule import CpuRule, dtype_of, vectorize_if_whole
from sparsetrain.runtime.host import has_bf16_dot


class HalfMatmul(CpuRule):
    """Schedule for kernels that round and multiply two matrices, with an elementwise epilogue."""

    def schedule(
        self, sch: s_tir.Schedule, blocks: list[SBlockInfo], target: Target
    ) -> s_tir.Schedule | None:
        """Pad, pack, tile and fuse; return None without such a product or without AVX512_BF16."""
        if not has_bf16_dot(target):
            return None
        found = match_half_product(sch, blocks)
        if found is None:
            return None
        _schedule(sch, found)
        return sch


def _schedule(sch: s_tir.Schedule, found: HalfProduct) -> None:
    product, (left_stage, _), _ = found
    block = product.info.block_rv
    by_task = not product.left.contracted_is_contiguous
    shape = choose_shape(product)
    in_place = is_stored_in_steps(sch, product.left, left_stage)
    tile = [shape.rows * shape.tiles, shape.columns, 2]
    left, right, epilogue = prepare(sch, found, tile, in_place)
    loops = _tile_loops(sch, block, shape, left)
    to_steps(sch, right, product.right, shape.columns)
    if left is not None and by_task:
        to_steps(sch, left, product.left, shape.rows)
    sch.reverse_compute_at(epilogue, loops.tile)
    vectorize_if_whole(sch, sch.get_loops(epilogue)[-1], LANES)
    if left is not None and by_task:
        pack_left(sch, left, shape.rows)
    elif left is not None:
        round_left(sch, left)
    pack_right(sch, right, product.right)
    sch.parallel(loops.task)
    sch.annotate(loops.task, "pragma_import_llvm", HELPERS)
    store_rounded(sch, epilogue, product.columns)
    _accumulate_in_registers(sch, block, loops)


class _TileLoops(NamedTuple):
    task: LoopRV
    tile: LoopRV
    contracted: LoopRV
    row: LoopRV
    vector: LoopRV
    lane: LoopRV


def _tile_loops(
    sch: s_tir.Schedule, block: SBlockRV, shape: Shape, left: SBlockRV | None
) -> _TileLoops:
    """Build the loops: task, column panel, row tile, pair of k, row, vector; lane, k in pair.

    If `left`, the block that packs the left operand, is given, it is moved into the task's loop.
    """
    i, j, k = sch.get_loops(block)
    task, tile, row = sch.split(i, [None, shape.tiles, shape.rows])
    panel, vector, lane = sch.split(j, [None, shape.vectors, LANES])
    if shape.panels is not None:
        group, panel = sch.split(panel, [None, shape.panels])
        sch.reorder(task, group, panel, tile, k, row, vector, lane)
        task = sch.fuse(task, group)
    sch.reorder(task, panel, tile, k, row, vector, lane)
    if left is not None:
        # Must precede the split of `k`: `compute_at` of TVM 0.27 finds no simple bounds for pairs.
        sch.compute_at(left, task)
    pair, within = sch.split(k, [None, 2])
    sch.reorder(pair, row, vector, lane, within)
    return _TileLoops(task, tile, pair, row, vector, lane)


def _accumulate_in_registers(sch: s_tir.Schedule, block: SBlockRV, loops: _TileLoops) -> None:
    """Unroll a tile: one call per vector, and a separate block that zeroes the sums."""
    sch.unroll(loops.row)
    sch.unroll(loops.vector)
    init = sch.decompose_reduction(block, loops.contracted)
    *_, row, vector, lane = sch.get_loops(init)
    sch.vectorize(lane)
    sch.unroll(vector)
    sch.unroll(row)
    rewrite(sch, sch.blockize(loops.lane), _dot)


def _dot(block: s_tir.SBlock) -> tirx.Stmt:
    """Return the statement ``sums[16] += left[pair] * right[16 pairs]``."""
    sums = block.writes[0].source
    left, right = (region for region in block.reads if not region.source.same_as(sums))
    lanes = _lanes(block.writes[0], LANES)
    pair = tirx.BufferLoad(left.source, _lanes(left, 2))
    if dtype_of(left.source) == "bfloat16":  # read in place; packed operands are uint16
        pair = tirx.reinterpret("uint16x2", pair)
    call = tirx.call_extern(
        "float32x16",
        "sparsetrain_dot",
        tirx.BufferLoad(sums, lanes),
        pair,
        tirx.BufferLoad(right.source, _lanes(right, 2 * LANES)),
    )
    return tirx.BufferStore(sums, call, lanes)


def _lanes(region: tirx.BufferRegion, count: int) -> list[tirx.Expr]:
    *outer, first = at(region)
    return [*outer, tirx.Ramp(first, tirx.const(1, "int64"), count)]
