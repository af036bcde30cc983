# SPDX-License-Identifier: Apache-2.0
"""Restored tables: after weights and slots are loaded, histories continue or start anew."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from sparsetrain import runtime
from sparsetrain.errors import CheckpointError
from sparsetrain.runtime.tensors import editable_numpy
from sparsetrain.tables.formula import Range, Rule
from sparsetrain.tables.history import History
from sparsetrain.tables.slots import LAST, UNTOUCHED
from sparsetrain.tables.state_dict import HISTORY
from sparsetrain.tables.table import Table

MISSED = "missed"  # manifest entry: the tables and the base of each saved history


class Missed(NamedTuple):
    """A saved history: its tables, and the rule that they followed."""

    tables: Collection[str]
    rule: Rule
    base: int
    steps: np.ndarray


def missed_of(manifest: Mapping[str, Any]) -> list[Any]:
    """Return the manifest's list of histories; older ones have none, as all rows were current."""
    return list(manifest.get(MISSED) or ())


def missed_in(
    manifest: Mapping[str, Any],
    read: Callable[[str], np.ndarray],
    rule_then: Callable[[str], Rule],
) -> list[Missed]:
    """Return the histories of a checkpoint.

    Parameters
    ----------
    manifest : mapping
    read : callable
        (name) -> array.
    rule_then : callable
        (table's name) -> its rule when it was saved.
    """
    found = []
    for number, each in enumerate(missed_of(manifest)):
        tables = [*map(str, each["tables"])]
        steps = read(f"{HISTORY}{number}")
        found.append(Missed(tables, rule_then(tables[0]), int(each["base"]), steps))
    return found


def restored_(
    table: Table, before: Collection[str] | None = None, missed: Collection[Missed] = ()
) -> None:
    """Continue from loaded arrays.

    Rows continue to lag if their rule is still the saved one. All other rows are made current, and
    new histories begin. For current rows, `last` is set if it was not recorded: in tables that did
    not lag before, and for untouched rows that had nothing to replay before.

    Parameters
    ----------
    table : Table
    before : collection of str, optional
        The tables that lagged when these arrays were saved; by default those that lag now.
    missed : collection of Missed
        Saved histories of lagging rows; rows of other tables are current.

    Raises
    ------
    CheckpointError
        If a row has missed steps that are not in these histories.
    """
    for number, part in enumerate(table.ranges):
        history, pieces = table.histories.get(number), _pieces(table, part)
        then = {name: own for own in missed for name in pieces if name in own.tables}
        if history is not None and _goes_on_(table, history, part, [*map(then.get, pieces)]):
            continue
        for name, own in then.items():
            rows, of_then = pieces[name], History(own.rule.spec, dtype=table.dtype)
            _lag_again_(table, of_then, own, rows)
            table.replay(of_then, own.rule, (rows.start, rows.stop))
        if history is not None:
            recorded = {name for name in pieces if before is None or name in before}
            history.restart(_note_current_(table, part, pieces, recorded))
    table.read = None


def require_current(table: Table, arrays: Mapping[str, np.ndarray]) -> None:
    """Check that all rows are current in arrays that will be loaded.

    Raises
    ------
    CheckpointError
        If a row is not current.
    """
    begins = {name: rows.start for name, rows in table.named.items()}
    for number in table.histories:
        _step_of(
            table,
            [
                arrays[f"{name}:{LAST}"][rows.start - begins.get(name, 0) :][
                    : rows.stop - rows.start
                ]
                for name, rows in _pieces(table, table.ranges[number]).items()
            ],
        )


def _pieces(table: Table, part: Range) -> dict[str, slice]:
    """Return the rows of a range for each of its tables."""
    return {
        name: slice(max(part.first, rows.start), min(part.end, rows.stop))
        for name, rows in (table.named or {table.name: slice(0, part.end)}).items()
        if rows.start < part.end and part.first < rows.stop
    }


def _goes_on_(table: Table, history: History, part: Range, then: Sequence[Missed | None]) -> bool:
    """Keep rows of a range lagging if all its tables missed the same steps by the same rule."""
    one = then[0] if then else None
    if one is None or any(own is not one for own in then):
        return False
    alike = one.rule.spec.at_zero == part.rule.spec.at_zero
    if not alike or one.rule.max_replayed_steps != part.rule.max_replayed_steps:
        return False
    _lag_again_(table, history, one, slice(part.first, part.end))
    return True


def _lag_again_(table: Table, history: History, then: Missed, rows: slice) -> None:
    """Restore a history; refuse rows that have missed steps outside it."""
    history.go_on_(then.base, then.steps)
    last = runtime.as_numpy(table.slots[LAST])[rows]
    known = (last >= history.base) & (last <= history.now)
    if history.spec.noop_on_zero_grad == "untouched":
        known |= last == UNTOUCHED
    if not known.all():
        raise CheckpointError(f"rows of {table.name!r} missed steps that are not saved")


def _note_current_(
    table: Table, part: Range, pieces: Mapping[str, slice], recorded: Collection[str]
) -> int:
    """Set `last` in a range of current rows, except in the tables `recorded`; return the step."""
    last = runtime.as_numpy(table.slots[LAST])
    now = _step_of(table, [last[pieces[name]] for name in recorded])
    unrecorded = [rows for name, rows in pieces.items() if name not in recorded]
    waiting = part.rule.spec.noop_on_zero_grad != "untouched"
    if unrecorded or (waiting and (last[part.first : part.end] == UNTOUCHED).any()):
        with editable_numpy(table.slots[LAST]) as view:
            for rows in unrecorded:
                view[rows] = now
            of_part = view[part.first : part.end]
            of_part[waiting & (of_part == UNTOUCHED)] = now
    return now


def _step_of(table: Table, pieces: Sequence[np.ndarray]) -> int:
    """Return the step up to which all touched rows are current."""
    now = max((int(last.max(initial=0)) for last in pieces), default=0)
    if not all(((last == now) | (last == UNTOUCHED)).all() for last in pieces):
        raise CheckpointError(f"rows of {table.name!r} are saved at different steps")
    return now
