# SPDX-License-Identifier: Apache-2.0
"""The schedule rules of CUDA kernels, in the order in which they are asked.

Most are TVM's own, each on a copy of the function, so that one which fails half-way declines.
Every kernel gets a thread binding: the last rule never declines. Sums are taken in an order that
the shapes decide, so results have the same bits in every run.
"""

from tvm import s_tir, tirx
from tvm.s_tir.dlight import ScheduleRule
from tvm.s_tir.dlight import gpu as dlight
from tvm.target import Target

from sparsetrain.compiler.schedule.cuda.scalar_reduction import Total
from sparsetrain.compiler.schedule.rule import has_blocks


class Guarded(ScheduleRule):
    """Another rule, whose failures are refusals."""

    def __init__(self, rule: ScheduleRule) -> None:
        self.rule = rule

    def apply(self, func: tirx.PrimFunc, target: Target, tunable: bool) -> s_tir.Schedule | None:
        """Return a schedule of `func`, or None if the rule does not fit it or fails."""
        if target.kind.name != "cuda" or not has_blocks(func):
            return None
        try:
            return self.rule.apply(func, target, tunable)
        except Exception:  # TVM's rules assert, index and look up what odd functions do not have
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
