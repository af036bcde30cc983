# SPDX-License-Identifier: Apache-2.0
"""The CPU backend's schedule: graph passes for products, and rules for kernels."""

from sparsetrain.backend import Schedule
from sparsetrain.compiler.schedule.amx import TileMatmul
from sparsetrain.compiler.schedule.bf16 import HalfMatmul
from sparsetrain.compiler.schedule.elementwise import Elementwise
from sparsetrain.compiler.schedule.fallback import Fallback
from sparsetrain.compiler.schedule.fold_permutation import FoldPermutationIntoMatmul
from sparsetrain.compiler.schedule.matmul import Matmul
from sparsetrain.compiler.schedule.reduction import RowwiseReductions, SingleReduction
from sparsetrain.compiler.schedule.row_product import TakeRowProducts
from sparsetrain.compiler.schedule.rule import ApplyRules
from sparsetrain.compiler.schedule.transposes import FoldTransposeIntoMatmul

# The rules, tried in this order; the first rule that does not decline is used.
RULES = (
    TileMatmul(),
    HalfMatmul(),
    Matmul(),
    Elementwise(),
    SingleReduction(),
    RowwiseReductions(),
    Fallback(),
)


def schedule() -> Schedule:
    """Return the passes that schedule kernels for a CPU."""
    return Schedule(
        products=[TakeRowProducts(), FoldTransposeIntoMatmul(), FoldPermutationIntoMatmul()],
        kernels=[ApplyRules(*RULES)],
    )
