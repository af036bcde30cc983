# SPDX-License-Identifier: Apache-2.0
"""Operands of a product, packed into panels or read in place, and the epilogue of a product.

A panel holds the columns of one register tile for every step of `k`, so the inner loop reads it
sequentially. In place, rows a power of two apart would evict each other from the first-level cache;
in a panel they cannot.

- The right operand is packed once, by all threads, before the product starts, because every block
  of rows reads it. If there are too few rows for several blocks, the thread that packs columns also
  multiplies them. In a batch of small matrices, the task that multiplies a matrix also packs it.
- The left operand is read in place if `k` is contiguous in it (NN, NT). Otherwise (TN) each block
  of rows is packed by the thread that is about to use it, and stays in its second-level cache.

Cost: one copy of the packed operand. Invariant: values are unchanged; results for the padding are
never stored. Blocks after a product are merged into one epilogue, which runs before the store.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import gcd
from typing import Any

from tvm import s_tir, tirx
from tvm.ir import Range
from tvm.s_tir.dlight.analysis import SBlockInfo
from tvm.s_tir.schedule import LoopRV, SBlockRV

from sparsetrain.compiler.schedule.product import Operand
from sparsetrain.compiler.schedule.rule import parallel_over, static_extent

# Number of adjacent source columns that a packing task copies: four cache lines of float32.
_PACKED_TOGETHER = 64
# Number of source rows gathered at once: cache lines a power of two apart fall into one set of the
# first-level cache, which holds eight lines.
_GATHERED = 8
# Number of steps of `k` in a packing task.
_PACKED_STRETCH = 256


def pack_panels(
    sch: s_tir.Schedule, block: SBlockRV, operand: Operand, width: int, lanes: int
) -> None:
    """Pack an operand in a separate parallel pass.

    A task copies a range of `k` for a few panels, so it reads whole cache lines and writes few
    streams. Vectors run across the columns of a panel. If the source is contiguous in `k`, a vector
    is gathered from several rows, and later steps of `k` find these rows in cache. Tasks have the
    order in which the product reads the panels.
    """
    vector_width = gcd(lanes, width)
    padding = padding_block(sch, block, operand)
    if operand.contracted_is_contiguous:
        vector_width = min(vector_width, _GATHERED)
    elif padding is not None:
        _repeat_last(sch, padding, operand, vector_width)
    packing = _lay_out_in_panels(sch, block, operand, width)
    loops = sch.get_loops(packing)
    panels = _panels_per_task(static_extent(sch, loops[operand.outer]), width)
    group, panel, vector, lane = sch.split(
        loops[operand.outer], [None, panels, width // vector_width, vector_width]
    )
    stretch, k = sch.split(loops[operand.contracted], [None, _PACKED_STRETCH])
    batch = _all_but(operand, loops)
    if operand.contracted_is_contiguous:
        sch.reorder(*batch, group, stretch, panel, vector, k, lane)
    else:
        sch.reorder(*batch, group, stretch, k, panel, vector, lane)
    sch.vectorize(lane)
    parallel_over(sch, [*batch, group, stretch])


def pack_nearby(
    sch: s_tir.Schedule, block: SBlockRV, operand: Operand, width: int, lanes: int, task: LoopRV
) -> None:
    """Pack a small operand inside the loop over tasks; all tiles of a task read it."""
    packing = _lay_out_in_panels(sch, block, operand, width)
    # Must precede any split, as in `pack_row_blocks`.
    sch.compute_at(packing, task)
    *_, outer, inner = sch.get_loops(packing)
    k, column = (inner, outer) if operand.contracted_is_contiguous else (outer, inner)
    panel, lane = sch.split(column, [None, gcd(lanes, width)])
    if operand.contracted_is_contiguous:
        sch.reorder(panel, k, lane)
    sch.vectorize(lane)


def pack_row_blocks(
    sch: s_tir.Schedule, block: SBlockRV, operand: Operand, width: int, row_block: LoopRV
) -> None:
    """Pack an operand block by block, inside the loop over blocks of rows."""
    packing = _lay_out_in_panels(sch, block, operand, width)
    # Must precede any split: `compute_at` of TVM 0.27 would drop the guard of an uneven split.
    sch.compute_at(packing, row_block)
    *_, row = sch.get_loops(packing)
    sch.vectorize(sch.split(row, [None, width])[-1])


def read_in_place(sch: s_tir.Schedule, block: SBlockRV, operand: Operand) -> None:
    """Remove the padding of an operand, so that rows are not copied just to append zeros."""
    padding = padding_block(sch, block, operand)
    if padding is not None:
        _repeat_last(sch, padding, operand)
        sch.compute_inline(padding)


def _repeat_last(sch: s_tir.Schedule, padding: SBlockRV, operand: Operand, lanes: int = 1) -> None:
    """Make a padding block repeat the last row or column instead of writing zeros.

    Results for the padding are never stored. A bounds check per element would prevent vector loads,
    so `lanes` adjacent elements are read as one vector if all are inside the bounds.
    """
    old = sch.get(padding)
    source = old.reads[0].source
    index = [axis.var for axis in old.iter_vars]
    clamped, extent = [*index], source.ty.shape[operand.outer]
    clamped[operand.outer] = tirx.min(index[operand.outer], extent - 1)
    value = tirx.BufferLoad(source, clamped)
    if lanes > 1:
        end = (tirx.floordiv(index[operand.outer], lanes) + 1) * lanes
        value = tirx.if_then_else(end <= extent, tirx.BufferLoad(source, index), value)
    new = s_tir.SBlock(
        old.iter_vars,
        [tirx.BufferRegion(source, [Range.from_min_extent(i, 1) for i in clamped])],
        old.writes,
        old.name_hint,
        tirx.BufferStore(old.body.buffer, value, old.body.indices),
    )
    sch.state.replace(sch.get_sref(padding), new, {old: new})


def padding_block(sch: s_tir.Schedule, block: SBlockRV, operand: Operand) -> SBlockRV | None:
    """Return the block that writes the padded copy of an operand, or None if there is none."""
    buffer = sch.get(block).reads[operand.read].source
    for producer in sch.get_producers(block):
        if sch.get(producer).writes[0].source.same_as(buffer):
            return producer
    return None


def _lay_out_in_panels(
    sch: s_tir.Schedule, block: SBlockRV, operand: Operand, width: int
) -> SBlockRV:
    """Copy an operand to `(..., panel, k, position in the panel)`; return the copying block."""
    packing = padding_block(sch, block, operand)
    if packing is None:
        packing = sch.cache_read(block, operand.read, "global")

    def panels(*index):
        outer, k = index[operand.outer], index[operand.contracted]
        return (*_all_but(operand, index), outer // width, k, outer % width)

    sch.transform_layout(packing, ("write", 0), panels)
    return packing


def _all_but(operand: Operand, dimensions: Sequence[Any]) -> list[Any]:
    """Return the entries of the batch axes, given an entry for each axis of an operand."""
    own = (operand.outer, operand.contracted)
    return [one for n, one in enumerate(dimensions) if n not in own]


def _panels_per_task(extent: int | None, width: int) -> int:
    """Return how many panels to copy together; to avoid guards, it divides their number."""
    wanted = max(1, _PACKED_TOGETHER // width)
    return wanted if extent is None else gcd(wanted, extent // width)


def inline_all_but_last(sch: s_tir.Schedule, blocks: list[SBlockInfo]) -> SBlockRV | None:
    """Inline the elementwise blocks into the last block, and return it (None if there are none)."""
    for info in blocks[:-1]:
        sch.compute_inline(info.block_rv)
    return blocks[-1].block_rv if blocks else None


def single_consumer(sch: s_tir.Schedule, block: SBlockRV, final: SBlockRV | None) -> SBlockRV:
    """Return the block that stores the product: the epilogue, the unpadding, or else a copy."""
    consumers = sch.get_consumers(block)
    if not consumers:
        return sch.cache_write(block, 0, "global")
    if final is None:
        return consumers[0]
    if sch.get(consumers[0]).name_hint != sch.get(final).name_hint:
        sch.compute_inline(consumers[0])
    return final
