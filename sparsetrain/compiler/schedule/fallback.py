# SPDX-License-Identifier: Apache-2.0
"""Fallback schedule, which keeps a kernel's loops and runs them in parallel if provably safe.

Each block keeps its loops and their order. Leading axes that write disjoint elements run in
parallel; TVM's schedule primitives verify this, and the block stays serial if they cannot. The
order of sums never changes, so results do not change either. A sum over an extent that may be 0 is
initialized in a separate loop, so that an empty sum gives 0 instead of uninitialized memory.
"""

from contextlib import suppress

from tvm import s_tir, tirx
from tvm.s_tir.dlight.analysis import SBlockInfo
from tvm.s_tir.schedule.schedule import ScheduleError
from tvm.target import Target

from sparsetrain.compiler.schedule.rule import CpuRule, parallel_over


class Fallback(CpuRule):
    """Parallelize the leading spatial axes of every block that allows it."""

    def schedule(
        self, sch: s_tir.Schedule, blocks: list[SBlockInfo], target: Target
    ) -> s_tir.Schedule | None:
        """Schedule any kernel; never return None."""
        del target
        for info in blocks:
            kinds, loops = info.dom_kind(), sch.get_loops(info.block_rv)
            leading = len(kinds) - len(kinds.lstrip("S"))
            if leading:
                with suppress(ScheduleError):
                    parallel_over(sch, loops[:leading])
            summed = [loop for kind, loop in zip(kinds, loops, strict=False) if kind == "R"]
            if any(_may_be_empty(sch.get(loop).extent) for loop in summed):
                with suppress(ScheduleError):
                    sch.decompose_reduction(info.block_rv, summed[0])
        return sch


def _may_be_empty(extent: tirx.Expr) -> bool:
    return not isinstance(extent, tirx.IntImm) or int(extent) == 0
