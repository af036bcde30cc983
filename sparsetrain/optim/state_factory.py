# SPDX-License-Identifier: Apache-2.0
"""Creation of an optimizer's state, and its transfer to a new optimizer with the same slots.

Rules and groups are resolved to ranges of rows here, once, not in every step.
"""

from __future__ import annotations

from collections.abc import Mapping

from sparsetrain import runtime
from sparsetrain.backend import Backend, backend_at, host
from sparsetrain.errors import ConfigError
from sparsetrain.optim.average import AVERAGE
from sparsetrain.optim.param_groups import RowRange, resolve
from sparsetrain.optim.state import RuleSource, State
from sparsetrain.optim.update_rule import UpdateRule
from sparsetrain.runtime import NDArray
from sparsetrain.system.argument_checks import require_int
from sparsetrain.tables.collection import Tables, weights_of
from sparsetrain.tables.formula import Formula
from sparsetrain.tables.slots import check_rules, new_slots, rows_of
from sparsetrain.tables.state_dict import Parts
from sparsetrain.tables.table import Table, new_last

# The rule of buffers, which steps overwrite: the `gradient` is the new value.
ASSIGNMENT = UpdateRule(Formula("assignment", lambda w, g, slots, h: (g, slots)), ())


def new_state(
    optimizer: RuleSource,
    params: Mapping[str, NDArray],
    tables: Parts,
    fill: bool,
    seed: int,
    scaled: bool,
    buffers: frozenset[str] = frozenset(),
    backend: Backend | None = None,
) -> State:
    """Make the state of an optimizer; see `Optimizer.init`."""
    if backend is None:
        backend = next(map(backend_at, params.values()), host())
    ranges = _resolved(optimizer, params, tables, scaled, buffers, backend)
    average = AVERAGE in dict(optimizer.rule().hyper)
    for name, param in params.items():
        check_rules(name, str(param.dtype), ranges[name], average)
    slots = {
        name: new_slots(name, ranges[name][0].rule.formula, param, fill)
        for name, param in params.items()
    }
    for name in _names_with_last(params, ranges, tables):
        slots[name] |= new_last(name, params[name], ranges[name], fill)
    count = runtime.zeros((1,), "int64")
    counted = runtime.as_numpy(count)
    made = {
        name: Table(name, param, slots[name], ranges[name], tables.get(name), counted)
        for name, param in params.items()
    }
    seed = require_int("seed", seed, 0)
    return State(Tables(made, count), optimizer, seed, scaled, buffers, backend)


def adopt_state_(optimizer: RuleSource, params: Mapping[str, NDArray], state: State) -> None:
    """Use an existing state with a new optimizer, which must have the same slots.

    Raises
    ------
    ConfigError
        If `state` is not a `State`, or was made for different modes or groups.
    """
    if not isinstance(state, State):
        raise ConfigError("optimizer: use the state from this optimizer's init")
    if state.owner is optimizer:
        return
    owned = {name: weights_of(params)[name] for name in state}
    tables = {table.name: table.named for table in state.tables.each() if table.named}
    ranges = _resolved(optimizer, owned, tables, state.scaled, state.buffers, state.backend)
    books = {table.name for table in state.tables.each() if table.has_last}
    follow = [table.lags_by(ranges[table.name]) for table in state.tables.each()]
    if not all(follow) or _names_with_last(owned, ranges, tables) != books:
        raise ConfigError(
            "optimizer: the state was made for different modes or groups; use the state from this "
            "optimizer's init"
        )
    for table in state.tables.each():
        table.ranges = ranges[table.name]
    state.owner = optimizer
    state.update_steps.clear()


def _resolved(
    optimizer: RuleSource,
    params: Mapping[str, NDArray],
    tables: Parts,
    scaled: bool,
    buffers: frozenset[str],
    backend: Backend,
) -> dict[str, tuple[RowRange, ...]]:
    heights = {n: rows_of(tuple(map(int, param.shape))) for n, param in params.items()}
    small = {
        name: backend.most_weights_dense // max(1, int(param.shape[-1]))
        for name, param in params.items()
        if _is_table(name, param, tables)
    }
    ranges = resolve(optimizer.rule(scaled), optimizer.groups, heights, tables, small)
    return ranges | {n: (RowRange((n,), 0, heights[n], ASSIGNMENT),) for n in buffers}


def _names_with_last(
    params: Mapping[str, NDArray], ranges: Mapping[str, tuple[RowRange, ...]], tables: Parts
) -> set[str]:
    """Return the names of parameters that get the slot `last`."""
    return {
        name
        for name, parts in ranges.items()
        if _is_table(name, params[name], tables) and any(part.rule.has_last for part in parts)
    }


def _is_table(name: str, param: NDArray, tables: Parts) -> bool:
    """Return whether a parameter may get row-sparse gradients: without `tables`, any matrix."""
    return name in tables or (not tables and len(param.shape) > 1)
