# SPDX-License-Identifier: Apache-2.0
"""The schedule rules for CUDA kernels, in the order in which they are tried.

Most are TVM's own rules. They run on a copy of the function, so if a rule fails halfway, the next
rule is tried. The last rule never declines. Shapes determine the order of sums, so results have the
same bits in every run. `Total` is for reductions to one number, such as the mean loss of a batch,
where TVM's rules fail or launch one thread per term. In one thread block, each thread adds every
1024th term, and then a tree adds the threads' sums.
"""

from __future__ import annotations

from tvm import s_tir, tirx
from tvm.s_tir.dlight import ScheduleRule
from tvm.s_tir.dlight import gpu as dlight
from tvm.s_tir.dlight.analysis import SBlockInfo, normalize_prim_func
from tvm.s_tir.schedule import SBlockRV
from tvm.target import Target

from sparsetrain.compiler.schedule.rule import has_blocks
from sparsetrain.ops.operand_shapes import is_one

_THREADS = 1024


class Total(ScheduleRule):
    """Rule for one reduction over all axes, with elementwise blocks before and scalars after it."""

    def apply(self, func: tirx.PrimFunc, target: Target, tunable: bool) -> s_tir.Schedule | None:
        """Return a schedule of `func`, or None if it has a different form."""
        del target, tunable
        sch = s_tir.Schedule(func)
        blocks = normalize_prim_func(sch) or []
        sums = [n for n, info in enumerate(blocks) if not info.is_injective()]
        if len(sums) != 1 or not _reduces_all(blocks[sums[0]]):
            return None
        if not all(map(_is_one_number, blocks[sums[0] + 1 :])):
            return None
        for info in blocks[: sums[0]]:
            sch.compute_inline(info.block_rv)
        _spread(sch, blocks[sums[0]].block_rv)
        for info in blocks[sums[0] + 1 :]:
            _one_thread(sch, info.block_rv)
        return sch


def _reduces_all(info: SBlockInfo) -> bool:
    kinds = info.dom_kind()
    spatial = (n for kind, n in zip(kinds, info.dom(), strict=True) if kind != "R")
    return "R" in kinds and all(map(is_one, spatial))


def _is_one_number(info: SBlockInfo) -> bool:
    return all(map(is_one, info.dom()))


def _spread(sch: s_tir.Schedule, block: SBlockRV) -> None:
    loops = sch.get_loops(block)
    fused = sch.fuse(*loops) if len(loops) > 1 else loops[0]
    step, thread = sch.split(fused, [None, _THREADS])
    sch.reorder(thread, step)
    sch.bind(sch.add_unit_loop(thread), "blockIdx.x")
    sch.bind(thread, "threadIdx.x")


def _one_thread(sch: s_tir.Schedule, block: SBlockRV) -> None:
    loops = sch.get_loops(block)
    inner = loops[-1] if loops else sch.add_unit_loop(block)
    sch.bind(inner, "threadIdx.x")
    sch.bind(sch.add_unit_loop(inner), "blockIdx.x")


class Guarded(ScheduleRule):
    """A rule that runs another rule, and declines if this rule raises an error."""

    def __init__(self, rule: ScheduleRule) -> None:
        self.rule = rule

    def apply(self, func: tirx.PrimFunc, target: Target, tunable: bool) -> s_tir.Schedule | None:
        """Return a schedule of `func`, or None if the wrapped rule declines or fails."""
        if target.kind.name != "cuda" or not has_blocks(func):
            return None
        try:
            return self.rule.apply(func, target, tunable)
        except Exception:  # TVM's rules raise errors of many types on unusual functions
            return None


RULES = tuple(
    Guarded(rule)
    for rule in (
        dlight.Matmul(),
        dlight.GEMV(),
        Total(),
        dlight.Reduction(),
        dlight.GeneralReduction(),
        dlight.Fallback(),
    )
)
