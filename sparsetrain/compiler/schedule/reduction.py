# SPDX-License-Identifier: Apache-2.0
"""Schedules for reductions: sums, means, and products too thin for a register tile.

There are two cases, which differ in the contiguous axis of the input:

- **Columns** (bias gradients, one-row weight gradients): the contiguous axis is kept and
  vectorized. The reduced axis is split into chunks of fixed length, and the partial results are
  combined in order.
- **Rows** (a one-column layer, norms, losses): the contiguous axis is reduced into a vector of
  partial results, which are combined at the end. Rows run in parallel; if there are only a few long
  rows, they are split into chunks.

Invariant: chunk lengths and vector widths depend on the target and the shape, never on the number
of threads. So the order of summation does not depend on it either. Chunks also bound the rounding
error of long sums.
"""

from tvm import s_tir
from tvm.s_tir.dlight.analysis import SBlockInfo
from tvm.s_tir.dlight.cpu import Reduction as DlightReduction
from tvm.s_tir.schedule import LoopRV, SBlockRV
from tvm.target import Target

from sparsetrain.compiler.schedule.elementwise import schedule_map
from sparsetrain.compiler.schedule.operands import inline_all_but_last
from sparsetrain.compiler.schedule.register_tile import vector_unit
from sparsetrain.compiler.schedule.rule import CpuRule, output_dtype, parallel_over, static_extent

# Rows per partial sum in the case of columns.
_ROWS_PER_CHUNK = 256
# Elements per partial result in the case of rows, if there are at most `_FEW_ROWS` rows.
_ELEMENTS_PER_CHUNK = 4096
_FEW_ROWS = 16


class SingleReduction(CpuRule):
    """Schedule for kernels with one reduction, and elementwise blocks before and after it."""

    def schedule(
        self, sch: s_tir.Schedule, blocks: list[SBlockInfo], target: Target
    ) -> s_tir.Schedule | None:
        """Choose the case by the contiguous axis; return None if there are several reductions."""
        reductions = [n for n, info in enumerate(blocks) if not info.is_injective()]
        if len(reductions) != 1 or set(blocks[reductions[0]].dom_kind()) - {"S", "R"}:
            return None
        place = reductions[0]
        block, followers = blocks[place].block_rv, blocks[place + 1 :]
        for info in blocks[:place]:
            sch.compute_inline(info.block_rv)
        final = inline_all_but_last(sch, followers)
        lanes = vector_unit(target).lanes(output_dtype(sch, block))
        spatial, reduced = _split_axes(sch, blocks[place])
        if spatial and _keeps_contiguous_axis(sch, block, spatial[-1]):
            _schedule_columns(sch, block, spatial, reduced, lanes)
        else:
            _schedule_rows(sch, block, spatial, reduced, lanes)
        if final is not None:
            schedule_map(sch, final, target)
        return sch


class RowwiseReductions(CpuRule):
    """TVM's own rule for several reductions over the same rows, as in softmax and layer norm."""

    def schedule(
        self, sch: s_tir.Schedule, blocks: list[SBlockInfo], target: Target
    ) -> s_tir.Schedule | None:
        """Run all blocks of a row together, so that the row stays in cache."""
        del blocks
        return DlightReduction().apply(sch.mod["main"], target, False)


def _split_axes(sch: s_tir.Schedule, info: SBlockInfo) -> tuple[list[LoopRV], LoopRV]:
    """Fuse the reduced loops into the innermost loop; return the spatial loops and this loop."""
    loops = sch.get_loops(info.block_rv)
    kinds = info.dom_kind()
    spatial = [loop for loop, kind in zip(loops, kinds, strict=True) if kind == "S"]
    reduced = [loop for loop, kind in zip(loops, kinds, strict=True) if kind == "R"]
    sch.reorder(*spatial, *reduced)
    return spatial, sch.fuse(*reduced) if len(reduced) > 1 else reduced[0]


def _keeps_contiguous_axis(sch: s_tir.Schedule, block: SBlockRV, last: LoopRV) -> bool:
    """Whether an operand is contiguous along the last spatial axis and the axis exceeds 1."""
    stmt = sch.get(block)
    spatial = [axis.var for axis in stmt.iter_vars if axis.iter_type == axis.DataPar]
    contiguous = [region.region[-1].min for region in stmt.reads if len(region.region)]
    return static_extent(sch, last) != 1 and any(c.same_as(spatial[-1]) for c in contiguous)


def _schedule_columns(
    sch: s_tir.Schedule, block: SBlockRV, spatial: list[LoopRV], reduced: LoopRV, lanes: int
) -> None:
    length = static_extent(sch, reduced)
    if length is None or length > 2 * _ROWS_PER_CHUNK:
        chunk, _ = sch.split(reduced, [None, _ROWS_PER_CHUNK])
        partial = sch.rfactor(chunk, 0)
        *outer, column, chunk, row = sch.get_loops(partial)
        _accumulate_columns(sch, partial, [chunk, *outer], column, row, lanes)
    *outer, column, reduced = sch.get_loops(block)
    _accumulate_columns(sch, block, outer, column, reduced, lanes)


def _accumulate_columns(
    sch: s_tir.Schedule,
    block: SBlockRV,
    outer: list[LoopRV],
    column: LoopRV,
    reduced: LoopRV,
    lanes: int,
) -> None:
    """Sum four vectors of columns in each task (256 bytes with AVX-512), row by row."""
    panel, vector, lane = sch.split(column, [None, 4, lanes])
    sch.reorder(*outer, panel, reduced, vector, lane)
    sch.vectorize(lane)
    sch.unroll(vector)
    parallel_over(sch, [*outer, panel])
    init = sch.decompose_reduction(block, reduced)
    *_, vector, lane = sch.get_loops(init)
    sch.vectorize(lane)
    sch.unroll(vector)


def _schedule_rows(
    sch: s_tir.Schedule, block: SBlockRV, spatial: list[LoopRV], reduced: LoopRV, lanes: int
) -> None:
    if _has_few_rows(sch, spatial) and (static_extent(sch, reduced) or 2**63) > _ELEMENTS_PER_CHUNK:
        chunk, _ = sch.split(reduced, [None, _ELEMENTS_PER_CHUNK])
        partial = sch.rfactor(chunk, 0)
        *outer, chunk, within = sch.get_loops(partial)
        sch.reorder(chunk, *outer, within)
        _accumulate_rows(sch, partial, [chunk, *outer], within, lanes)
        # Combine the few partial results serially, in order.
        _start_from_zero(sch, block)
        return
    _accumulate_rows(sch, block, spatial or [sch.add_unit_loop(reduced)], reduced, lanes)


def _start_from_zero(sch: s_tir.Schedule, block: SBlockRV) -> None:
    """Write the initial value in a separate block, which also runs if the reduction is empty."""
    sch.decompose_reduction(block, sch.get_loops(block)[-1])


def _has_few_rows(sch: s_tir.Schedule, spatial: list[LoopRV]) -> bool:
    rows = 1
    for loop in spatial:
        rows *= static_extent(sch, loop) or 2**31
    return rows <= _FEW_ROWS


def _accumulate_rows(
    sch: s_tir.Schedule, block: SBlockRV, outer: list[LoopRV], reduced: LoopRV, lanes: int
) -> None:
    """Compute one vector of partial results per row; a second pass combines its lanes.

    The passes stay separate. If the first pass were moved into the loops of the second,
    `compute_at` of TVM 0.27 would drop the guard that a row needs if its length is no multiple of
    the vector.
    """
    length = static_extent(sch, reduced)
    if length is None or length < 2 * lanes:
        parallel_over(sch, outer)
        if not length:  # unknown, or 0
            _start_from_zero(sch, block)
        return
    _, lane = sch.split(reduced, [None, lanes])
    partial = sch.rfactor(lane, len(sch.get(block).writes[0].region))
    *rows, step, lane = sch.get_loops(partial)
    parallel_over(sch, rows)
    if length % lanes == 0:
        sch.vectorize(lane)
    init = sch.decompose_reduction(partial, step)
    sch.vectorize(sch.get_loops(init)[-1])
    parallel_over(sch, sch.get_loops(block)[: len(rows)])
