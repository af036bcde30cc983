# SPDX-License-Identifier: Apache-2.0
"""Tracked rows of exact mode: catch-up of some rows, flush of all, and checks on loading.

The slot `last` holds the step up to which a row is current. Rows must be caught up before they are
read, and all of them flushed before a table is read as a whole. Cost: the steps that they missed.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from math import prod
from typing import Any

import numpy as np

from sparsetrain import runtime
from sparsetrain.backend import backend_at, host
from sparsetrain.errors import CheckpointError, ConfigError, DataError
from sparsetrain.optim.param_groups import RowRange
from sparsetrain.optim.state import LAST, UNTOUCHED, State, Target, matrix_shape, set_last_
from sparsetrain.runtime import NDArray
from sparsetrain.runtime.compiling import backend_kernel
from sparsetrain.runtime.pool import scratch_tensor
from sparsetrain.runtime.tensors import editable_numpy, reshape_view, target_of, to_device
from sparsetrain.sparse_tensor import CoalescePlan, RowSparse
from sparsetrain.sparse_tensor.coalesce import make_plan, rows_below, same_ids
from sparsetrain.tables import replay

FOREVER = 2**31 - 1  # a limit that is never reached


def catch_up_(params: Mapping[str, NDArray], rows: Mapping[str, Any], state: State) -> int:
    """Make these rows current and keep the plans; return the steps replayed.

    Raises
    ------
    DataError
        If a row is outside its table.
    """
    replayed = 0
    for name, indices in rows.items():
        if not state.is_tracked(name):
            continue
        height = matrix_shape(params[name].shape)[0]
        tensor = to_device(_checked_rows(name, indices, height), params[name].device)
        try:
            plan = make_plan(tensor, height)
        except DataError as error:
            raise DataError(f"catch_up: {name!r}: {error}") from None
        state.caught[name] = tensor, plan
        replayed += sum(
            replay_range_(params, state, name, number, (plan, span))
            for number, span in _tracked_spans(state, name, plan)
        )
    return replayed


def flush_(params: Mapping[str, NDArray], state: State) -> int:
    """Make all rows current and begin new histories; return the steps replayed."""
    replayed = 0
    for name, slots in state.items():
        for part in state.ranges[name] if LAST in slots else ():
            if part.rule.has_last and part.rule.dense:
                set_last_(slots, part, state.step)
    for (name, number), history in state.histories.items():
        if history.now > history.base:
            replayed += replay_range_(params, state, name, number, None)
            history.restart()
    return replayed


def exact_tables(state: State) -> dict[str, list[str]]:
    """Names of the tables in exact mode, by parameter; for others the slot `last` means nothing."""
    return {
        name: sorted(table for part in parts if part.rule.has_last for table in part.names)
        for name, parts in state.ranges.items()
        if LAST in state[name]
    }


def restored_(state: State, before: Collection[str] | None = None) -> None:
    """Begin new histories at the steps that were loaded.

    All rows are current, as in every checkpoint. Those for which `last` does not say so are noted
    as current: of a table that is tracked from now on, and where a row without a step had nothing
    to catch up with before, but has from now on.

    Parameters
    ----------
    state : State
        Written.
    before : collection of str, optional
        The tables that were tracked when these arrays were saved; by default those that are now.

    Raises
    ------
    CheckpointError
        If a row is not current.
    """
    for (name, number), history in state.histories.items():
        part = state.ranges[name][number]
        pieces = _pieces(state, name, part)
        known = {table: rows for table, rows in pieces.items() if before is None or table in before}
        last = runtime.as_numpy(state[name][LAST])
        now = _step_of(name, [last[rows] for rows in known.values()])
        untold = [rows for table, rows in pieces.items() if table not in known]
        waiting = part.rule.spec.noop_on_zero_grad != "untouched"
        if untold or (waiting and (last[part.first : part.end] == UNTOUCHED).any()):
            with editable_numpy(state[name][LAST]) as view:
                for rows in untold:
                    view[rows] = now
                of_part = view[part.first : part.end]
                of_part[waiting & (of_part == UNTOUCHED)] = now
        history.restart(now)
    state.caught.clear()


def check_saved(state: State, arrays: Mapping[str, np.ndarray]) -> None:
    """Check that all rows are current in arrays that are about to be loaded.

    Raises
    ------
    CheckpointError
        If a row is not.
    """
    for name, number in state.histories:
        begins = {table: rows.start for table, rows in state.tables.get(name, {}).items()}
        pieces = [
            arrays[f"{table}:{LAST}"][rows.start - begins.get(table, 0) :][: rows.stop - rows.start]
            for table, rows in _pieces(state, name, state.ranges[name][number]).items()
        ]
        _step_of(name, pieces)


def _pieces(state: State, name: str, part: RowRange) -> dict[str, slice]:
    """The rows of the parameter that lie in a range, for each of its tables."""
    tables = state.tables.get(name) or {name: slice(0, part.end)}
    return {
        table: slice(max(part.first, rows.start), min(part.end, rows.stop))
        for table, rows in tables.items()
        if rows.start < part.end and part.first < rows.stop
    }


def _step_of(name: str, pieces: Sequence[np.ndarray]) -> int:
    """The step up to which all touched rows are current."""
    now = max((int(last.max(initial=0)) for last in pieces), default=0)
    if not all(((last == now) | (last == UNTOUCHED)).all() for last in pieces):
        raise CheckpointError(f"rows of {name!r} are saved at different steps")
    return now


def find_plan(state: State, name: str, gradient: RowSparse) -> CoalescePlan:
    """Return the plan of a gradient's rows: that of the catch-up if it was for the same ids."""
    known = state.caught.get(name)
    if known is not None and same_ids(known[0], gradient.indices):
        return known[1]
    return gradient.plan()


def require_current_(
    params: Mapping[str, NDArray], state: State, name: str, plan: CoalescePlan
) -> None:
    """Refuse a gradient of rows that were read while they were behind.

    Raises
    ------
    ConfigError
        If there is such a row; they are current then.
    """
    known = state.caught.get(name)
    if not state.histories or (known is not None and known[1] is plan):
        return
    for number, span in _tracked_spans(state, name, plan):
        if replay_range_(params, state, name, number, (plan, span)):
            raise ConfigError(
                f"optimizer: rows of {name!r} were read while steps behind: in exact mode call "
                "catch_up_ before the program; they are current now"
            )


def tracked_of(names: Iterable[str], state: State) -> list[str]:
    """Those of the parameters whose rows are tracked."""
    return [name for name in names if state.is_tracked(name)]


def require_all_current_(
    params: Mapping[str, NDArray], gradients: Mapping[str, Any], names: Iterable[str], state: State
) -> None:
    """`require_current_` of the gradients of tracked parameters."""
    for name in names:
        require_current_(params, state, name, find_plan(state, name, gradients[name]))


def replay_range_(
    params: Mapping[str, NDArray],
    state: State,
    name: str,
    number: int,
    segments: tuple[CoalescePlan, tuple[int, int]] | None,
) -> int:
    """Catch up the rows of a range in segments of a plan, or all; return the steps replayed."""
    part, history = state.ranges[name][number], state.histories[name, number]
    plan, span = (None, (part.first, part.end)) if segments is None else segments
    param, limit = params[name], part.rule.max_replayed_steps
    rows, width = matrix_shape(param.shape)
    kernel = _catch_up_kernel(
        target_of(param),
        history.spec.at_zero,
        width,
        str(param.dtype),
        None if plan is None else str(plan.rows.dtype),
        limit is not None,
    )
    tasks_of = backend_at(param).kernel("tasks of catching up rows", replay.tasks_of)
    tasks = tasks_of(span[1] - span[0])
    replayed = scratch_tensor((tasks,), "int64", param)
    kernel(
        *([] if plan is None else [plan.rows]),
        *Target(param, state[name]).views(history.spec, rows, width),
        state[name][LAST],
        to_device(history.tensor, param.device),
        replayed,
        0.0,
        *span,
        history.base,
        history.now,
        limit or FOREVER,
    )
    return int(backend_at(replayed).totals([replayed])[0])


def _checked_rows(name: str, indices: Any, rows: int) -> NDArray:
    """Row numbers (N,) of a table, from an integer array of any shape.

    Those that lie on a device are not read: their plan says if one is outside.
    """
    if isinstance(indices, runtime.NDArray) and backend_at(indices) is not host():
        if indices.dtype not in ("int32", "int64"):
            raise DataError(f"catch_up: rows of {name!r} are {indices.dtype}, not int32 or int64")
        return reshape_view(indices, (prod(indices.shape),))
    array = np.ravel(runtime.as_numpy(indices) if isinstance(indices, runtime.NDArray) else indices)
    if array.size and (array.min() < 0 or array.max() >= rows):
        bad = int(array[(array < 0) | (array >= rows)][0])
        raise DataError(f"catch_up: row {bad} is outside the {rows} rows of {name!r}")
    return runtime.as_tensor(array, "int32" if array.dtype == np.int32 else "int64")


def _tracked_spans(
    state: State, name: str, plan: CoalescePlan
) -> Iterator[tuple[int, tuple[int, int]]]:
    """Number of each tracked range of a parameter, and the segments of the plan in it."""
    for number, span in enumerate(segment_spans(plan, state.ranges[name])):
        if (name, number) in state.histories:
            yield number, span


def segment_spans(plan: CoalescePlan, parts: Sequence[RowRange]) -> list[tuple[int, int]]:
    """For each range, the segments of the plan that lie in it; rows of a plan rise."""
    if len(parts) == 1:
        return [(0, plan.num_unique)]
    below = rows_below(plan, [edge for part in parts for edge in (part.first, part.end)])
    return [*zip(below[::2], below[1::2], strict=True)]


_catch_up_kernel = backend_kernel("catching up rows", replay.catch_up_kernel)
