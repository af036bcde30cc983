# SPDX-License-Identifier: Apache-2.0
"""A third backend, of one folder: any processor that LLVM knows, by the plainest schedules.

Its programs have no kernel for a certain CPU, no tile of registers and no product of gradients.
"""

from tvm.target import Target

from sparsetrain.backend import Schedule
from sparsetrain.backends.cpu import Cpu


class Plain(Cpu):
    """The CPU without what makes it fast."""

    kind = "plain"
    most_weights_dense = 0

    def target(self) -> Target:
        """A processor of which nothing is known."""
        return Target({"kind": "llvm", "keys": ["plain", "cpu"]})

    def complete(self, target: Target) -> Target:
        """It has no instructions to leave out."""
        return target

    def lacks(self, dtype: str, target: Target) -> str:
        """See `Backend`."""
        return f"a plain processor computes no products of {dtype}"

    def schedule(self) -> Schedule:
        """Every kernel by the rule that takes all."""
        from sparsetrain.compiler.schedule.fallback import Fallback
        from sparsetrain.compiler.schedule.rule import ApplyRules
        from sparsetrain.compiler.schedule.transposes import FoldTransposeIntoMatmul

        return Schedule(products=[FoldTransposeIntoMatmul()], kernels=[ApplyRules(Fallback())])
