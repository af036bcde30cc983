# SPDX-License-Identifier: Apache-2.0
"""Which tables are updated densely: those that must be, and those for which it is cheaper.

Only where a gradient of 0 changes nothing may the cost decide, because only there the bits are the
same whichever way is taken. So a choice may differ between machines, or between steps of one run.

Measured lines propose which tables to update densely. Unless they speak clearly against it, they
are not to be trusted with the answer, and both ways are tried: on a machine that others use lines
were wrong by the whole time of an update. While the machine is busy neither tells anything. Then
rows are touched: what that may lose is bounded by the ids of a step, what the dense way may lose
only by the rows of the tables.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from itertools import groupby
from typing import Any, NamedTuple

from sparsetrain.errors import ResourceError
from sparsetrain.optim.group import Range, merge, shortened
from sparsetrain.optim.paths.costs import (
    TRIES,
    Costs,
    Kept,
    costs_of,
    kernels_to_measure,
    verdict_of,
)
from sparsetrain.optim.rule import Rule
from sparsetrain.optim.state import State
from sparsetrain.runtime import NDArray
from sparsetrain.runtime.tensors import on_gpu
from sparsetrain.system.argument_checks import require_int

REMEMBERED = 256  # choices; batches of bags have a new number of ids in every step
DOUBT = 0.4  # of the sparse path's time: unless the lines predict such a loss, it is tried
WORTH = 0.05  # of the sparse path's time: what a buffer as large as the tables must save
SURELY = 0.25  # of it: what it must save while too few runs found so; some seconds mislead by 20 %


class Choice(NamedTuple):
    """Tables whose path is decided by cost.

    Parameters
    ----------
    dense : tuple of Range
        Those that are updated densely, one table each.
    known : bool
        Whether the machine was quiet enough to measure what is cheaper.
    """

    dense: tuple[Range, ...]
    known: bool = True


def dense_parts(state: State, name: str, width: int, lookups: int | None) -> tuple[Range, ...]:
    """The ranges of a parameter that a step of so many ids updates densely, in rising order.

    Those that must be, and those for which it is cheaper; with None only the former.
    """
    key = name, lookups
    if key not in state.chosen:
        if len(state.chosen) >= REMEMBERED:
            state.chosen.clear()
        found = [part for part in state.ranges[name] if part.rule.dense]
        if lookups is not None:
            found += choose(state, name, lookups, width, state.dtypes[name]).dense
        state.chosen[key] = merge(sorted(found, key=lambda part: part.first))
    return state.chosen[key]


def kernels_to_choose(state: State, name: str, width: int, lookups: int) -> list[partial[Any]]:
    """What has those kernels ready, one by one, that a choice by measured costs would run first.

    A caller with more to compile does that beside them; `dense_parts` compiles what is missing.
    """
    if (name, lookups) in state.chosen:
        return []
    rules = {part.rule for part in state.ranges[name] if part.rule.by_cost}
    rows = max((part.end for part in state.ranges[name]), default=0)
    if not (rows and lookups):
        return []
    given = width, state.dtypes[name], rows, lookups
    return [kernel for rule in rules for kernel in kernels_to_measure(rule, *given)]


def choose(state: State, name: str, lookups: int, width: int, dtype: str) -> Choice:
    """Decide for the tables of one parameter, whose ids in a step are `lookups` in all."""
    tables = [table for part in state.ranges[name] for table in _tables(state, name, part)]
    free = [table for table in tables if table.rule.by_cost]
    rows = max((part.end for part in state.ranges[name]), default=0)
    if not (free and rows and lookups):  # coalesced gradients have a plan, the cheaper way
        return Choice(())
    each = lookups / len(tables)
    costs = _costs({table.rule for table in free}, width, dtype, rows, lookups)
    if costs is None:
        return Choice((), known=False)
    saved = {t: costs[t.rule].saved(t.end - t.first, each) for t in free}
    gain, dense = _proposed(tables, saved, costs[free[0].rule], lookups)
    expected = _expected(tables, costs, each)
    if not dense or gain <= -DOUBT * expected:
        return Choice(())
    near = [table.end - table.first for table in dense]
    far = int(each * (len(tables) - len(dense)))
    try:
        tried = verdict_of(dense[0].rule, width, dtype, rows, near, round(each) or 1, far)
    except (ResourceError, MemoryError):  # nor would there be any for the path's buffer
        return Choice(())
    saves = tried is not None and _enough(tried, expected)
    return Choice(dense if saves else (), known=tried is not None)


def _enough(tried: Kept, expected: float) -> bool:
    """Whether the dense path saves enough of what a step on the sparse path takes."""
    least = WORTH if tried.tries >= TRIES else SURELY
    saved: float = tried.figures.low
    return saved > least * expected


def _costs(
    rules: Iterable[Rule], width: int, dtype: str, rows: int, lookups: int
) -> dict[Rule, Costs] | None:
    """Of each rule; None unless all are known."""
    costs = {}
    for rule in rules:
        cost = costs_of(rule, width, dtype, rows, lookups)
        if cost is None:
            return None
        costs[rule] = cost
    return costs


def _expected(tables: Sequence[Range], costs: Mapping[Rule, Costs], each: float) -> float:
    """Microseconds of a step in which all tables take the sparse path."""
    first = next(iter(costs.values()))
    of = (costs.get(t.rule, first).on_sparse_path(t.end - t.first, each) for t in tables)
    return first.sparse + sum(of)


def _proposed(
    tables: Sequence[Range], saved: Mapping[Range, float], costs: Costs, lookups: int
) -> tuple[float, tuple[Range, ...]]:
    """What the dense path would save at best, and the tables that would take it."""
    some = [table for table in saved if saved[table] > 0]
    fixed = costs.dense + costs.part * lookups
    gains = [(sum(saved[t] for t in some) - fixed, tuple(some))] if some else []
    if len(saved) == len(tables):  # without a sparse table the sort and its fixed cost go, too
        gains.append((sum(saved.values()) - fixed + costs.sparse, tuple(saved)))
    return max(gains, key=lambda gain: gain[0], default=(0.0, ()))


def _tables(state: State, name: str, part: Range) -> list[Range]:
    """The tables of a range, which is its own table where nobody spoke of tables."""
    known: Mapping[str, Any] = state.tables.get(name, {})
    if not known:
        return [part]
    rows = [(label, known[label]) for label in part.names]
    return [Range((label,), where.start, where.stop, part.rule) for label, where in rows]


class Reasons(NamedTuple):
    """Which path the updates of tables take, and why.

    Parameters
    ----------
    of_tables : tuple of (str, str)
        Path and reason, and the name, of each table.
    """

    of_tables: tuple[tuple[str, str], ...]

    def lines(self) -> list[str]:
        """A line for each table; neighbours of one answer share it."""
        lines = []
        for why, group in groupby(self.of_tables, key=lambda one: one[0]):
            lines.append(f"{shortened([name for _, name in group])}: {why}")
        return lines

    def summary(self) -> str:
        """The paths alone, and how many tables take each."""
        count = Counter(why.partition(";")[0] for why, _ in self.of_tables)
        return "; ".join(f"{path} ({n} table{'s'[: n - 1]})" for path, n in count.items())


def reasons(
    state: State, params: Mapping[str, NDArray] | None = None, lookups: int | None = None
) -> Reasons:
    """For each table, which path its updates take and why.

    With `params` and the ids that a step looks up in each table it is known what is cheaper. On a
    GPU nothing is chosen by cost.
    """
    if lookups is not None:
        require_int("lookups", lookups, 0)
    is_on_gpu = {name: params is not None and on_gpu(params[name]) for name in state.tables}
    choices = {
        name: None if is_on_gpu[name] else _choice(state, name, params, lookups)
        for name in state.tables
    }
    of_tables = tuple(
        (table.rule.path if is_on_gpu[name] else _reason(table, choices[name]), label)
        for name in state.tables
        for part in state.ranges[name]
        for table in _tables(state, name, part)
        for label in table.names
    )
    return Reasons(of_tables)


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
    if not choice.known:
        return (
            f"{rule.path}; the machine was too busy to tell whether every row is cheaper: the next "
            "run tries again"
        )
    return f"{rule.path}; every row would not be cheaper"
