# SPDX-License-Identifier: Apache-2.0
"""The update of a table that goes the way of the last step's.

Most steps look up as many ids as the one before, all of them take one path, and no row is caught
up. Then nothing is left to find out but whether this step is one of those. Of the sparse path the
ids are sorted where the last ones were. Both paths are repeated, so that what `auto` measures of
them is what they differ by in a step.

Python's part of an update is longer than the rest, on caches that a step has filled with other
things: each function that is not called saves a microsecond or more.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from sparsetrain.optim.paths.dense import DensePath, Near
from sparsetrain.optim.range_update import RowUpdate, Target
from sparsetrain.optim.rule import Rule
from sparsetrain.sparse_tensor import CoalescePlan, RowSparse
from sparsetrain.sparse_tensor.coalesce import Sort

ScalarsOf = Callable[[Rule], Sequence[float]]


class Repeated(Protocol):
    """How all entries of a gradient reach their table; belongs to one step at a time."""

    def takes(self, gradient: RowSparse) -> bool:
        """Do all that comes before the writes, unless the gradient is of another kind.

        Raises
        ------
        DataError
            If an index is no row of the table.
        """

    def finish_(self, gradient: RowSparse, scalars_of: ScalarsOf) -> None:
        """Write what was taken; `scalars_of` gives what the kernels of a rule get."""


class RepeatedRows:
    """The sparse path of a table of one rule.

    Parameters
    ----------
    sort : Sort
        Of the last step; its plan is overwritten.
    update : RowUpdate
        Of the table's only range, on the host.
    rule : Rule
        That range's.
    """

    __slots__ = ("_plan", "_rule", "_sort", "_update")

    def __init__(self, sort: Sort, update: RowUpdate, rule: Rule) -> None:
        self._sort, self._update, self._rule = sort, update, rule
        self._plan: CoalescePlan | None = None

    def takes(self, gradient: RowSparse) -> bool:
        """Sort the ids."""
        indices = gradient.indices
        if gradient.coalesced or indices.size(0) != self._sort.count:
            return False
        try:
            self._plan = self._sort(indices)
        except TypeError:  # ids of another dtype: the kernel compares them
            return False
        return True

    def finish_(self, gradient: RowSparse, scalars_of: ScalarsOf) -> None:
        """Update the rows of the plan."""
        plan, self._plan = self._plan, None
        assert plan is not None, "no gradient was taken"
        self._update(gradient, plan, scalars_of(self._rule), (0, plan.num_unique))


class RepeatedDense:
    """The dense path, of a gradient all of whose entries take it.

    Parameters
    ----------
    path : DensePath
        Of the last step.
    target : Target
        The table and its slots.
    count : int
        Entries of the last gradient, by which the path was chosen.
    """

    __slots__ = ("_count", "_near", "_path", "_target")

    def __init__(self, path: DensePath, target: Target, count: int) -> None:
        self._path, self._target, self._count = path, target, count
        self._near: Near | None = None

    def takes(self, gradient: RowSparse) -> bool:
        """Part the entries; there may be some for which no row is dense."""
        if gradient.coalesced or gradient.nse != self._count:
            return False
        self._near, rest = self._path.split(gradient)
        return rest is None

    def finish_(self, gradient: RowSparse, scalars_of: ScalarsOf) -> None:
        """Update every row of the path."""
        near, self._near = self._near, None  # it holds the gradient's values
        assert near is not None, "no gradient was taken"
        self._path.update_(self._target, near, scalars_of)
