# SPDX-License-Identifier: Apache-2.0
"""The update of a table that goes the way of the last step's.

Most steps look up as many ids as the one before, all of them go by one plan and one rule, and no
row is caught up. Then nothing is left to find out but whether this step is one of those: its ids
are sorted where the last ones were, and the rows are written.

Python's part of an update is longer than the rest, on caches that a step has filled with other
things: each function that is not called saves a microsecond or more.
"""

from __future__ import annotations

from collections.abc import Sequence

from sparsetrain.optim.apply import RowUpdate
from sparsetrain.optim.rule import Rule
from sparsetrain.sparse_tensor import CoalescePlan, RowSparse
from sparsetrain.sparse_tensor.coalesce import Sort


class Repeated:
    """How all rows of a gradient reach their table; belongs to one step at a time.

    Parameters
    ----------
    sort : Sort
        Of the last step; its plan is overwritten.
    update : RowUpdate
        Of the table's only range, on the host.
    rule : Rule
        That range's.

    Attributes
    ----------
    plan : CoalescePlan or None
        Of the gradient that was taken.
    """

    __slots__ = ("_sort", "_update", "plan", "rule")

    def __init__(self, sort: Sort, update: RowUpdate, rule: Rule) -> None:
        self._sort, self._update, self.rule = sort, update, rule
        self.plan: CoalescePlan | None = None

    def takes(self, gradient: RowSparse) -> bool:
        """Sort the ids of a gradient, unless it is one of another kind.

        Raises
        ------
        DataError
            If one is no row of the table.
        """
        indices = gradient.indices
        if gradient.coalesced or indices.size(0) != self._sort.count:
            return False
        try:
            self.plan = self._sort(indices)
        except TypeError:  # ids of another dtype: the kernel compares them
            return False
        return True

    def finish_(self, gradient: RowSparse, scalars: Sequence[float]) -> None:
        """Update the rows of the gradient that was taken."""
        plan = self.plan
        assert plan is not None, "no gradient was taken"
        self._update(gradient, plan, scalars, (0, plan.num_unique))
