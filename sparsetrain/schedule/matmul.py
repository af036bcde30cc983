# SPDX-License-Identifier: Apache-2.0
"""Matrix products: one schedule for NN, NT, TN, any extents, and whatever elementwise work follows.

- **Padded**: rows and columns to multiples of the register tile, so that the inner loops carry no
  guard. Only the copies into packed form and the stores test bounds. This is what makes a
  symbolic batch free.
- **Packed**: the right operand into panels `(column panel, k, column)`, in a parallel pass of its
  own: a panel is then read front to back, whatever the form, and stays in the second-level cache
  while a block of rows passes over it. The left operand of TN likewise into `(row tile, k, row)`:
  its columns are a power of two apart and would evict each other.
- **In registers**: one tile of rows x columns accumulates over the whole of `k`. Columns are
  vectorised, rows unrolled. The epilogue (bias, activation, mask) is applied to the tile before
  it is stored.
- **Parallel**: blocks of rows. Every element is summed over `k` in order by one thread, so the
  result does not depend on the number of threads.
"""

from math import gcd
from typing import NamedTuple

from tvm import s_tir
from tvm.s_tir.dlight.analysis import SBlockInfo
from tvm.s_tir.schedule import LoopRV, SBlockRV
from tvm.target import Target

from .product import Extent, Operand, Product, match_product
from .register_tile import RegisterTile, register_tile, vector_unit
from .rule import CpuRule, output_dtype, parallel_over, static_extent, vectorize_if_whole

# Register tiles in a block of rows: a panel is fetched once for this many tiles.
_TILES_PER_ROW_BLOCK = 4
# Blocks of rows to aim for where few rows are known beforehand, so that every thread gets some.
_FEWEST_ROW_BLOCKS = 16
# Columns of the source that a packing task copies side by side: four cache lines of float32.
_PACKED_TOGETHER = 64
# Steps of `k` in a packing task.
_PACKED_STRETCH = 256
# Below this, padding to a tile costs more than it saves; the reduction rule takes the product.
_FEWEST_ROWS = 4


class Matmul(CpuRule):
    """Schedule a function that holds one matrix product and an elementwise epilogue."""

    def schedule(
        self, sch: s_tir.Schedule, blocks: list[SBlockInfo], target: Target
    ) -> s_tir.Schedule | None:
        """Pad, pack, tile and fuse; None if this is not a product or too thin for a tile."""
        products = [match_product(sch, info) for info in blocks]
        product = next((p for p in products if p is not None), None)
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
    """Whether some other block computes an operand. Blocks that only feed the epilogue may."""
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
    block = product.info.block_rv
    final = _inline_all_but_last(sch, others)
    sch.pad_einsum(block, [1] * product.batch_axes + [tile.rows, tile.columns, 1])
    epilogue = _single_consumer(sch, block, final)
    left = _packing_block(sch, block, product.left)
    _pack(sch, block, product.right, tile.columns, lanes)
    if not product.left.contracted_is_contiguous:
        _pack(sch, block, product.left, tile.rows, lanes)
    loops = _tile_loops(sch, product, tile)
    sch.reverse_compute_at(epilogue, loops.tile)
    vectorize_if_whole(sch, sch.get_loops(epilogue)[-1], lanes)
    if left is not None and product.left.contracted_is_contiguous:
        sch.compute_at(left, loops.row_block)
        vectorize_if_whole(sch, sch.get_loops(left)[-1], lanes)
    _accumulate_in_registers(sch, block, loops)


def _inline_all_but_last(sch: s_tir.Schedule, blocks: list[SBlockInfo]) -> SBlockRV | None:
    """Merge the elementwise blocks into the last one, and return that."""
    for info in blocks[:-1]:
        sch.compute_inline(info.block_rv)
    return blocks[-1].block_rv if blocks else None


def _single_consumer(sch: s_tir.Schedule, block: SBlockRV, final: SBlockRV | None) -> SBlockRV:
    """The one block that stores the product: epilogue, removal of the padding, or a plain copy."""
    consumers = sch.get_consumers(block)
    if not consumers:
        return sch.cache_write(block, 0, "global")
    if final is None:
        return consumers[0]
    if sch.get(consumers[0]).name_hint != sch.get(final).name_hint:
        sch.compute_inline(consumers[0])
    return final


def _packing_block(sch: s_tir.Schedule, block: SBlockRV, operand: Operand) -> SBlockRV | None:
    """The block that writes the padded copy of an operand; None if it needs no padding."""
    buffer = sch.get(block).reads[operand.read].source
    for producer in sch.get_producers(block):
        if sch.get(producer).writes[0].source.same_as(buffer):
            return producer
    return None


def _pack(sch: s_tir.Schedule, block: SBlockRV, operand: Operand, width: int, lanes: int) -> None:
    """Lay an operand out as `(..., panel, k, position in the panel)` in a parallel pass."""
    packing = _packing_block(sch, block, operand)
    if packing is None:
        packing = sch.cache_read(block, operand.read, "global")

    def panels(*index):
        outer, k = index[operand.outer], index[operand.contracted]
        return (*index[:-2], outer // width, k, outer % width)

    sch.transform_layout(packing, ("write", 0), panels)
    _schedule_packing(sch, packing, operand, width, lanes)


def _schedule_packing(
    sch: s_tir.Schedule, packing: SBlockRV, operand: Operand, width: int, lanes: int
) -> None:
    """Copy a stretch of `k` for a few panels at a time, in parallel.

    A task reads whole cache lines of the source and writes few streams. Vectors run along the
    panel: where the source is contiguous in `k` instead they are gathered, and the next steps of
    `k` find the lines in cache.
    """
    loops = sch.get_loops(packing)
    panels = _panels_per_task(static_extent(sch, loops[operand.outer]), width)
    vector_width = gcd(lanes, width)
    group, panel, vector, lane = sch.split(
        loops[operand.outer], [None, panels, width // vector_width, vector_width]
    )
    stretch, k = sch.split(loops[operand.contracted], [None, _PACKED_STRETCH])
    batch = loops[:-2]
    if operand.contracted_is_contiguous:
        sch.reorder(*batch, stretch, group, panel, vector, k, lane)
    else:
        sch.reorder(*batch, stretch, group, k, panel, vector, lane)
    sch.vectorize(lane)
    parallel_over(sch, [*batch, stretch, group])


def _panels_per_task(extent: int | None, width: int) -> int:
    """Panels copied side by side: a divisor of their number, so that the copy needs no guard."""
    wanted = max(1, _PACKED_TOGETHER // width)
    return wanted if extent is None else gcd(wanted, extent // width)


class _TileLoops(NamedTuple):
    row_block: LoopRV
    tile: LoopRV
    contracted: LoopRV
    row: LoopRV
    column: LoopRV


def _tile_loops(sch: s_tir.Schedule, product: Product, tile: RegisterTile) -> _TileLoops:
    """Nest: row block (parallel), column panel, tile of the block, k, row, column."""
    *batch, i, j, k = sch.get_loops(product.info.block_rv)
    tiles = _tiles_per_row_block(product.rows, tile.rows)
    row_block, row_tile, row = sch.split(i, [None, tiles, tile.rows])
    panel, column = sch.split(j, [None, tile.columns])
    sch.reorder(*batch, row_block, panel, row_tile, k, row, column)
    return _TileLoops(parallel_over(sch, [*batch, row_block]), row_tile, k, row, column)


def _tiles_per_row_block(rows: Extent, tile_rows: int) -> int:
    if not isinstance(rows, int):
        return _TILES_PER_ROW_BLOCK
    return max(1, min(_TILES_PER_ROW_BLOCK, rows // (tile_rows * _FEWEST_ROW_BLOCKS)))


def _accumulate_in_registers(sch: s_tir.Schedule, block: SBlockRV, loops: _TileLoops) -> None:
    sch.vectorize(loops.column)
    sch.unroll(loops.row)
    init = sch.decompose_reduction(block, loops.contracted)
    *_, row, column = sch.get_loops(init)
    sch.vectorize(column)
    sch.unroll(row)
