# SPDX-License-Identifier: Apache-2.0
"""The CUDA backend's schedule: hand-written kernels, and rules for all other kernels."""

from sparsetrain.backend import Schedule
from sparsetrain.backends.cuda.schedule.checks import NameForC, RequireThreads
from sparsetrain.backends.cuda.schedule.hand_written import WriteByHand
from sparsetrain.backends.cuda.schedule.roots import DivideByRoots
from sparsetrain.backends.cuda.schedule.running_sum import TakeRunningSums
from sparsetrain.backends.cuda.schedule.schedule_rules import RULES
from sparsetrain.compiler.schedule.rule import ApplyRules
from sparsetrain.compiler.schedule.transposes import FoldTransposeIntoMatmul


def schedule() -> Schedule:
    """Return the passes that schedule kernels for a CUDA device."""
    return Schedule(
        graph=[TakeRunningSums()],
        products=[FoldTransposeIntoMatmul()],
        kernels=[NameForC(), DivideByRoots(), WriteByHand(), ApplyRules(*RULES), RequireThreads()],
    )
