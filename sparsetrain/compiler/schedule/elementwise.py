# SPDX-License-Identifier: Apache-2.0
"""Schedule for elementwise kernels (maps, broadcasts, transposes, concatenations).

Intermediate blocks are inlined into the blocks that write results, so a kernel makes one pass over
memory. All axes but the last are spread over the threads; the last axis, which is contiguous in the
result, is vectorized. A single axis is split into chunks large enough for a thread.
"""

from tvm import s_tir
from tvm.s_tir.dlight.analysis import SBlockInfo
from tvm.s_tir.schedule import SBlockRV
from tvm.target import Target

from sparsetrain.compiler.schedule.register_tile import vector_unit
from sparsetrain.compiler.schedule.rule import (
    CpuRule,
    output_dtype,
    parallel_over,
    static_extent,
    vectorize_if_whole,
)

# Fewest elements per thread: a few microseconds of work.
_CHUNK = 4096


class Elementwise(CpuRule):
    """Schedule for kernels in which every block computes each element independently."""

    def schedule(
        self, sch: s_tir.Schedule, blocks: list[SBlockInfo], target: Target
    ) -> s_tir.Schedule | None:
        """Inline intermediate blocks and schedule the others; return None if a block reduces."""
        # TVM also calls a product injective if its sum has one term. But its block stores zero and
        # then adds, so an epilogue inlined into it would be applied twice.
        if not all(info.is_injective() and _starts_nowhere(sch, info) for info in blocks):
            return None
        for block in _inlined(sch, blocks):
            schedule_map(sch, block, target)
        return sch


def _inlined(sch: s_tir.Schedule, blocks: list[SBlockInfo]) -> list[SBlockRV]:
    """Inline each block into its consumers; return the blocks that write results.

    dlight's `try_inline` also tries blocks that write results. TVM refuses these, and the first
    error is slow (see `rule`).
    """
    results = sch.get_output_blocks(sch.get_sblock("root"))
    kept = {sch.get(block).name_hint for block in results}
    for info in blocks:
        if sch.get(info.block_rv).name_hint not in kept:
            sch.compute_inline(info.block_rv)
    return results


def _starts_nowhere(sch: s_tir.Schedule, info: SBlockInfo) -> bool:
    return sch.get(info.block_rv).init is None


def schedule_map(sch: s_tir.Schedule, block: SBlockRV, target: Target) -> None:
    """Spread one elementwise block over threads and vectors."""
    loops = sch.get_loops(block)
    if all(static_extent(sch, loop) == 1 for loop in loops):
        return
    if len(loops) == 1:
        loops = sch.split(loops[0], [None, _CHUNK])
    lanes = vector_unit(target).lanes(output_dtype(sch, block))
    vectorize_if_whole(sch, loops[-1], lanes)
    outer = loops[:-1]
    if any(static_extent(sch, loop) != 1 for loop in outer):
        parallel_over(sch, outer)
