# SPDX-License-Identifier: Apache-2.0
"""Schedule for matrix products: NN, NT or TN, any extents, and any elementwise epilogue.

- **Padding**: rows and columns are padded to multiples of the register tile, so the inner loops
  need no bounds checks. Only loads at the edge and stores check bounds, so a symbolic batch size
  costs nothing.
- **Packing**: the right operand, and in TN the left operand, are packed; `operands.py` explains how
  and why. In a batch of small matrices, the task that multiplies a matrix packs it.
- **Registers**: one tile of rows x columns accumulates over all of `k`. Columns are vectorized and
  rows unrolled. The epilogue (bias, activation, mask) is applied to the tile before it is stored.
- **Threads**: a task is a block of rows, or one column panel of a block if threads do not pack
  their own rows, or one matrix of a batch of small matrices. A panel is fetched once for the tiles
  of a row block. One thread sums each element over `k` in order, so the result does not depend on
  the number of threads.
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

# Rows of a register tile -> tiles in a row block, for which a panel is fetched once. Most batch
# sizes are powers of two, which blocks of 128 or 66 rows divide about evenly; blocks of 96 would
# split 128 rows unevenly between two threads. Processors with tiles of 6 rows have smaller
# second-level caches.
_TILES_PER_ROW_BLOCK = {8: 16, 6: 11}
# Tiles in a row block if a task packs its rows over all of `k` (a batch): at a batch of 2048, they
# fill half of a second-level cache.
_PACKED_TILES = 8
# Smallest number of row blocks if the rows are static, so that every thread gets work.
_FEWEST_ROW_BLOCKS = 8
# A batch has small matrices if a right operand has at most this many bytes, so that it fits into a
# core's second-level cache, and a product has at most this many multiplications.
_SMALL_OPERAND = 2**17
_SMALL_PRODUCT = 2**22
# With fewer rows, padding to a tile costs more than it saves; the reduction rule then schedules the
# product.
_FEWEST_ROWS = 4


class Matmul(CpuRule):
    """Schedule for kernels with one matrix product and an elementwise epilogue."""

    def schedule(
        self, sch: s_tir.Schedule, blocks: list[SBlockInfo], target: Target
    ) -> s_tir.Schedule | None:
        """Pad, pack, tile and fuse; return None if it is no product or too thin for a tile."""
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
    """Whether a block computes an operand of the product itself."""
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
    columns = product.columns if isinstance(product.columns, int) else None
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
    if columns is not None and columns > tile.columns and columns % lanes:
        # Vectors inside the bounds get a loop of their own: with a check of each number, they would
        # be stored number by number.
        sch.annotate(sch.get_loops(epilogue)[-2], "pragma_loop_partition_hint", True)
    if not in_place:
        pack_row_blocks(sch, block, left, tile.rows, loops.task)
    if is_small:
        pack_nearby(sch, block, right, tile.columns, lanes, loops.task)
    _accumulate_in_registers(sch, block, loops)


def _is_small(sch: s_tir.Schedule, product: Product) -> bool:
    """Whether each product of a batch has its own right operand and fits into one task."""
    rows, columns, steps = product.rows, product.columns, product.contracted
    if not (isinstance(rows, int) and isinstance(columns, int) and isinstance(steps, int)):
        return False
    operand = sch.get(product.info.block_rv).reads[product.right.read]
    bytes_ = columns * steps * DataType(dtype_of(operand.source)).itemsize
    is_batch = len(operand.region) > 2
    return is_batch and bytes_ <= _SMALL_OPERAND and rows * columns * steps <= _SMALL_PRODUCT


def _padding(product: Product, tile: RegisterTile) -> list[int]:
    """Return a number for each axis of the product; the axis is padded to a multiple of it."""
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
    """Build the loops: row block (a task), column panel, row tile, k, row, column.

    With `by_panel`, each column panel of a row block is a task.
    """
    *batch, j, k = sch.get_loops(product.info.block_rv)
    i = batch.pop(product.row_axis)
    row_block, row_tile, row = sch.split(i, [None, tiles, tile.rows])
    panel, column = sch.split(j, [None, tile.columns])
    sch.reorder(*batch, row_block, panel, row_tile, k, row, column)
    tasks = [*batch, row_block, *([panel] if by_panel else [])]
    return _TileLoops(parallel_over(sch, tasks), row_tile, k, row, column)


def _tiles(product: Product, tile: RegisterTile) -> int:
    """Return the number of register tiles in a task's block of rows."""
    in_place = product.left.contracted_is_contiguous
    most = _TILES_PER_ROW_BLOCK[tile.rows] if in_place else _PACKED_TILES
    if not isinstance(product.rows, int):
        return most
    return max(1, min(most, product.rows // (tile.rows * _FEWEST_ROW_BLOCKS)))


def _accumulate_in_registers(sch: s_tir.Schedule, block: SBlockRV, loops: _TileLoops) -> None:
    """Vectorize columns and unroll rows; zero a tile's sums in a separate block."""
    sch.vectorize(loops.column)
    sch.unroll(loops.row)
    init = sch.decompose_reduction(block, loops.contracted)
    *_, row, column = sch.get_loops(init)
    sch.vectorize(column)
    sch.unroll(row)
