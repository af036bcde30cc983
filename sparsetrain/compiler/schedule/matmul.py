# SPDX-License-Identifier: Apache-2.0
"""Matrix products: one schedule for NN, NT, TN, any extents, and whatever elementwise work follows.

- **Padded**: rows and columns to multiples of the register tile, so the inner loops have no guard.
  Only the loads at the edge and the stores test bounds. So a symbolic batch costs nothing.
- **Packed**: the right operand, and the left one of TN; `operands.py` says how and why. Of a batch
  of small matrices each is packed by the task that multiplies it.
- **In registers**: one tile of rows x columns accumulates over the whole of `k`. Columns are
  vectorised, rows unrolled. The epilogue (bias, activation, mask) is applied to the tile before
  it is stored.
- **Parallel**: blocks of rows, times column panels where no thread packs rows for itself, or
  whole matrices of a batch of small ones. A block is a few tiles high, for which a panel is fetched
  once. Every element is summed over `k` in
  order by one thread, so the result does not depend on the number of threads.
"""

from typing import NamedTuple

from tvm import DataType, s_tir
from tvm.s_tir.dlight.analysis import SBlockInfo
from tvm.s_tir.schedule import LoopRV, SBlockRV
from tvm.target import Target

from sparsetrain.compiler.schedule.operands import (
    inline_all_but_last,
    pack_nearby,
    pack_panels,
    pack_row_blocks,
    read_in_place,
    single_consumer,
)
from sparsetrain.compiler.schedule.product import Extent, Product, find_product
from sparsetrain.compiler.schedule.register_tile import RegisterTile, register_tile, vector_unit
from sparsetrain.compiler.schedule.rule import (
    CpuRule,
    dtype_of,
    output_dtype,
    parallel_over,
    vectorize_if_whole,
)

# Rows of a register tile -> tiles in a block of rows: a panel is fetched once for them. Batches are
# powers of two, mostly, so blocks of 128 or 66 rows come out even; of 128 rows, blocks of 96 gave
# one of two threads 36. Processors with tiles of 6 rows have smaller second-level caches.
_TILES_PER_ROW_BLOCK = {8: 16, 6: 11}
# The same where each block's rows are packed over the whole of `k`, a batch: half of a second-level
# cache at 2048 steps.
_PACKED_TILES = 8
# Blocks of rows to aim for where few rows are known beforehand, so that every thread gets some.
_FEWEST_ROW_BLOCKS = 8
# A matrix of a batch is small if it fits well into a core's second cache, and its product is soon
# done: bytes of the right operand, and products of two numbers.
_SMALL_OPERAND = 2**17
_SMALL_PRODUCT = 2**22
# Below this, padding to a tile costs more than it saves; the reduction rule takes the product.
_FEWEST_ROWS = 4


class Matmul(CpuRule):
    """Schedule a function that holds one matrix product and an elementwise epilogue."""

    def schedule(
        self, sch: s_tir.Schedule, blocks: list[SBlockInfo], target: Target
    ) -> s_tir.Schedule | None:
        """Pad, pack, tile and fuse; None if this is not a product or too thin for a tile."""
        product = find_product(sch, blocks)
        if product is None or _is_thin(product):
            return None
        others = [info for info in blocks if info is not product.info]
        if not all(info.is_injective() for info in others) or _feeds(sch, blocks, product):
            return None
        dtype = output_dtype(sch, product.info.block_rv)
        columns = product.columns if isinstance(product.columns, int) else None
        tile = register_tile(target, dtype, columns)
        lanes = vector_unit(target).lanes(dtype)
        _apply_tile(sch, product, others, tile, lanes)
        return sch


def _feeds(sch: s_tir.Schedule, blocks: list[SBlockInfo], product: Product) -> bool:
    """Whether a block computes an operand. Blocks that only feed the epilogue may."""
    written = [sch.get(info.block_rv).writes[0].source for info in blocks]
    read = [region.source for region in sch.get(product.info.block_rv).reads]
    return any(w.same_as(r) for w in written for r in read)


def _is_thin(product: Product) -> bool:
    def at_most(extent: Extent, limit: int) -> bool:
        return isinstance(extent, int) and extent <= limit

    return (
        at_most(product.rows, _FEWEST_ROWS - 1)
        or at_most(product.columns, 1)
        or at_most(product.contracted, 1)
    )


def _apply_tile(
    sch: s_tir.Schedule,
    product: Product,
    others: list[SBlockInfo],
    tile: RegisterTile,
    lanes: int,
) -> None:
    block, left, right = product.info.block_rv, product.left, product.right
    is_small = _is_small(sch, product)
    tiles = -(-int(product.rows) // tile.rows) if is_small else _tiles(product, tile)
    final = inline_all_but_last(sch, others)
    sch.pad_einsum(block, _padding(product, tile))
    epilogue = single_consumer(sch, block, final)
    if not is_small:
        pack_panels(sch, block, right, tile.columns, lanes)
    in_place = left.contracted_is_contiguous
    if in_place:
        read_in_place(sch, block, left)
    loops = _tile_loops(sch, product, tile, tiles, by_panel=in_place and not is_small)
    sch.reverse_compute_at(epilogue, loops.tile)
    vectorize_if_whole(sch, sch.get_loops(epilogue)[-1], lanes)
    if not in_place:
        pack_row_blocks(sch, block, left, tile.rows, loops.task)
    if is_small:
        pack_nearby(sch, block, right, tile.columns, lanes, loops.task)
    _accumulate_in_registers(sch, block, loops)


def _is_small(sch: s_tir.Schedule, product: Product) -> bool:
    """Whether there is a right operand for each of a batch, and a task can do all of a product."""
    rows, columns, steps = product.rows, product.columns, product.contracted
    if not (isinstance(rows, int) and isinstance(columns, int) and isinstance(steps, int)):
        return False
    operand = sch.get(product.info.block_rv).reads[product.right.read]
    bytes_ = columns * steps * DataType(dtype_of(operand.source)).itemsize
    is_batch = len(operand.region) > 2
    return is_batch and bytes_ <= _SMALL_OPERAND and rows * columns * steps <= _SMALL_PRODUCT


def _padding(product: Product, tile: RegisterTile) -> list[int]:
    """For each axis of the product, the multiple that its extent is padded to."""
    padding = [1] * len(product.info.dom())
    padding[product.row_axis], padding[-2] = tile.rows, tile.columns
    return padding


class _TileLoops(NamedTuple):
    task: LoopRV
    tile: LoopRV
    contracted: LoopRV
    row: LoopRV
    column: LoopRV


def _tile_loops(
    sch: s_tir.Schedule, product: Product, tile: RegisterTile, tiles: int, *, by_panel: bool
) -> _TileLoops:
    """Nest: row block, column panel, tile of the block, k, row, column; the first are tasks."""
    *batch, j, k = sch.get_loops(product.info.block_rv)
    i = batch.pop(product.row_axis)
    row_block, row_tile, row = sch.split(i, [None, tiles, tile.rows])
    panel, column = sch.split(j, [None, tile.columns])
    sch.reorder(*batch, row_block, panel, row_tile, k, row, column)
    tasks = [*batch, row_block, *([panel] if by_panel else [])]
    return _TileLoops(parallel_over(sch, tasks), row_tile, k, row, column)


def _tiles(product: Product, tile: RegisterTile) -> int:
    """Register tiles in a block of rows, which a task computes."""
    in_place = product.left.contracted_is_contiguous
    most = _TILES_PER_ROW_BLOCK[tile.rows] if in_place else _PACKED_TILES
    if not isinstance(product.rows, int):
        return most
    return max(1, min(most, product.rows // (tile.rows * _FEWEST_ROW_BLOCKS)))


def _accumulate_in_registers(sch: s_tir.Schedule, block: SBlockRV, loops: _TileLoops) -> None:
    """Vectorise columns, unroll rows; a block of its own sets a tile's sums to zero."""
    sch.vectorize(loops.column)
    sch.unroll(loops.row)
    init = sch.decompose_reduction(block, loops.contracted)
    *_, row, column = sch.get_loops(init)
    sch.vectorize(column)
    sch.unroll(row)
