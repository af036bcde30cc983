# SPDX-License-Identifier: Apache-2.0
"""Tuning constants by processor family; none of them changes a result."""

from typing import NamedTuple

from tvm.target import Target

from sparsetrain.runtime.host import select_by_cpu


class Make(NamedTuple):
    """Habits of a make of processors.

    Parameters
    ----------
    asks_steadily : bool
        Whether a tile's operands are asked for between the steps of its sum, or all at once before.
    tiles_of_short_sum : int
        Register tiles in a block of rows whose sums have few steps.
    gradient_vectors : int
        Most vectors in a row of a register tile of a weight's gradient.
    """

    asks_steadily: bool
    tiles_of_short_sum: int
    gradient_vectors: int


# Zen 5: products of the Kaggle DLRM at 97 % of what the cores can. Others: Granite Rapids, whose
# last cache is far away.
_MAKES = {"znver": Make(False, 16, 2), "": Make(True, 8, 3)}


def make_of(target: Target) -> Make:
    """The habits for the processor that a target names."""
    return select_by_cpu(_MAKES, target)
