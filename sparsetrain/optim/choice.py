# SPDX-License-Identifier: Apache-2.0
"""Which tables are updated densely: those that must be, and those for which it is cheaper.

Only where a gradient of 0 changes nothing may the cost decide, because only there the bits are the
same whichever way is taken. So a choice may differ between machines, or between steps of one run.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import groupby
from typing import Any, NamedTuple

from sparsetrain import runtime
from sparsetrain.optim.costs import costs_of
from sparsetrain.optim.group import Range, merge, shortened
from sparsetrain.optim.state import State
from sparsetrain.runtime import NDArray
from sparsetrain.sparse_tensor import RowSparse

REMEMBERED = 256  # choices; batches of bags have a new number of ids in every step


class Choice(NamedTuple):
    """Tables whose path is decided by cost.

    Parameters
    ----------
    dense : tuple of Range
        Those that are updated densely, one table each.
    saved : dict of Range to float
        Of every table, the microseconds that the dense path saves; fixed costs apart.
    """

    dense: tuple[Range, ...]
    saved: Mapping[Range, float]


def dense_parts(state: State, name: str, gradient: RowSparse, *, chosen: bool) -> tuple[Range, ...]:
    """The ranges of a parameter that this step updates densely, in rising order.

    With `chosen` those for which it is cheaper are among them, else only those that must be.
    """
    key = name, gradient.nse if chosen else None
    if key not in state.chosen:
        if len(state.chosen) >= REMEMBERED:
            state.chosen.clear()
        found = [part for part in state.ranges[name] if part.rule.dense]
        if chosen:
            found += choose(state, name, gradient.nse, gradient.width, state.dtypes[name]).dense
        state.chosen[key] = merge(sorted(found, key=lambda part: part.first))
    return state.chosen[key]


def choose(state: State, name: str, lookups: int, width: int, dtype: str) -> Choice:
    """Decide for the tables of one parameter, whose ids in a step are `lookups` in all."""
    tables = [table for part in state.ranges[name] for table in _tables(state, name, part)]
    free = [table for table in tables if table.rule.by_cost]
    rows = max((part.end for part in state.ranges[name]), default=0)
    if not (free and rows and lookups):  # coalesced gradients have a plan, the cheaper way
        return Choice((), {})
    each = lookups / len(tables)
    costs = {rule: costs_of(rule, width, dtype, rows, lookups) for rule in {t.rule for t in free}}
    saved = {t: costs[t.rule].saved(t.end - t.first, each) for t in free}
    some = [table for table in free if saved[table] > 0]
    first = costs[free[0].rule]
    fixed = first.dense + first.part * lookups
    gains = [(sum(saved[t] for t in some) - fixed, tuple(some))] if some else []
    if len(free) == len(tables):  # without a sparse table the sort and its fixed cost go, too
        gains.append((sum(saved.values()) - fixed + first.sparse, tuple(free)))
    best, dense = max(gains, key=lambda gain: gain[0], default=(0.0, ()))
    return Choice(dense if best > 0 else (), saved)


def _tables(state: State, name: str, part: Range) -> list[Range]:
    """The tables of a range, which is its own table where nobody spoke of tables."""
    known: Mapping[str, Any] = state.tables.get(name, {})
    if not known:
        return [part]
    rows = [(label, known[label]) for label in part.names]
    return [Range((label,), where.start, where.stop, part.rule) for label, where in rows]


def reasons(
    state: State, params: Mapping[str, NDArray] | None = None, lookups: int | None = None
) -> list[str]:
    """For each table, which path its updates take and why; neighbours of one answer share a line.

    With `params` and the ids that a step looks up in each table it is known what is cheaper. On a
    GPU nothing is chosen by cost.
    """
    answers = (
        (table.rule.path if on_gpu else _reason(table, choice), table)
        for name in state.tables
        for on_gpu in [params is not None and runtime.on_gpu(params[name])]
        for choice in [None if on_gpu else _choice(state, name, params, lookups)]
        for part in state.ranges[name]
        for table in _tables(state, name, part)
    )
    lines = []
    for why, group in groupby(answers, key=lambda answer: answer[0]):
        names = tuple(label for _, table in group for label in table.names)
        lines.append(f"{shortened(names)}: {why}")
    return lines


def _choice(
    state: State, name: str, params: Mapping[str, NDArray] | None, lookups: int | None
) -> Choice | None:
    if params is None or lookups is None:
        return None
    width, dtype = int(params[name].shape[-1]), str(params[name].dtype)
    return choose(state, name, lookups * max(len(state.tables[name]), 1), width, dtype)


def _reason(table: Range, choice: Choice | None) -> str:
    rule = table.rule
    if not rule.by_cost:
        return rule.path
    if choice is None:
        return f"{rule.path}; every row in steps where that is cheaper"
    if table in choice.dense:
        return f"every row, the cheaper way; {rule.mode} is exact: a gradient of 0 changes nothing"
    return f"{rule.path}; every row would not be cheaper"
