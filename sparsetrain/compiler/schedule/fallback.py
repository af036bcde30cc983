# SPDX-License-Identifier: Apache-2.0
"""Fallback rule: the loops as they are, parallel where that is provably safe.

Each block keeps its loops and their order. Leading axes that write disjoint elements run in
parallel; the schedule primitives verify that, and a block that they refuse stays serial. The order
of sums never changes, so neither do results.
"""

from contextlib import suppress

from tvm import s_tir
from tvm.s_tir.dlight.analysis import SBlockInfo
from tvm.s_tir.schedule.schedule import ScheduleError
from tvm.target import Target

from sparsetrain.compiler.schedule.rule import CpuRule, parallel_over


class Fallback(CpuRule):
    """Parallelise the leading spatial axes of every block that allows it."""

    def schedule(
        self, sch: s_tir.Schedule, blocks: list[SBlockInfo], target: Target
    ) -> s_tir.Schedule | None:
        """Never declines."""
        del target
        for info in blocks:
            kinds = info.dom_kind()
            leading = len(kinds) - len(kinds.lstrip("S"))
            if leading:
                with suppress(ScheduleError):
                    parallel_over(sch, sch.get_loops(info.block_rv)[:leading])
        return sch
