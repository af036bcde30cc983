# SPDX-License-Identifier: Apache-2.0
"""Parameter groups: options for parameters and tables with matching names, as ranges of rows.

Tables that share a storage may differ in learning rate, decay and mode. The rows of a plan are
sorted and a table is a range of rows, so each range is one call of the same kernel. Neighbouring
ranges with equal rules are merged. Groups are resolved once, when the state is created.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from fnmatch import fnmatchcase
from types import MappingProxyType
from typing import NamedTuple

from sparsetrain.errors import ConfigError
from sparsetrain.optim.schedules import Function, Schedule, constant
from sparsetrain.optim.update_rule import (
    MODES,
    UPDATES,
    Mode,
    Number,
    Update,
    UpdateRule,
    as_hyper_parameter,
)
from sparsetrain.system.argument_checks import as_float, is_number
from sparsetrain.tables.state_dict import Parts


@dataclass(frozen=True)
class ParamGroup:
    """Options for parameters with matching names, in place of the optimizer's.

    If several groups match a name, the last one wins, option by option.

    Parameters
    ----------
    match : str
        A name in `Trainer.state_dict`, with ``*`` and ``?``: ``"embeddings.C1.weight"``,
        ``"embeddings.*"``, ``"*.bias"``.
    lr : float, Schedule or function of the step, optional
        Replaces the optimizer's.
    scale : float
        Multiplies the learning rate.
    weight_decay, mode, max_replayed_steps, update : optional
        Replace the optimizer's.
    """

    match: str
    lr: Number | None = None
    scale: float = 1.0
    weight_decay: float | None = None
    mode: Mode | None = None
    max_replayed_steps: int | None = None
    update: Update | None = None

    def __post_init__(self) -> None:
        if self.mode is not None and self.mode not in MODES:
            raise ConfigError(f"group {self.match!r}: mode must be in {MODES}, not {self.mode!r}")
        if self.update is not None and self.update not in UPDATES:
            raise ConfigError(
                f"group {self.match!r}: update must be in {UPDATES}, not {self.update!r}"
            )
        if not isinstance(self.match, str):
            raise ConfigError(
                f"group {self.match!r}: match must be a name, with * and ? for any letters"
            )
        if not (is_number(self.scale) and 0 <= self.scale < float("inf")):
            raise ConfigError(f"group {self.match!r}: scale must be 0 or more, not {self.scale}")
        for name in ("scale", "weight_decay"):
            object.__setattr__(self, name, as_float(getattr(self, name)))


class RowRange(NamedTuple):
    """Rows [first, end) of a parameter that follow one rule; `names` are the tables in it."""

    names: tuple[str, ...]
    first: int
    end: int
    rule: UpdateRule

    @property
    def label(self) -> str:
        """The names, shortened."""
        return abbreviate_names(self.names)


def abbreviate_names(names: Sequence[str]) -> str:
    """Return one name, or the first and the last of several."""
    return names[0] if len(names) == 1 else f"{names[0]} to {names[-1]} ({len(names)} tables)"


def resolve(
    rule: UpdateRule,
    groups: Sequence[ParamGroup],
    heights: Mapping[str, int],
    tables: Parts,
    small: Mapping[str, int] = MappingProxyType({}),
) -> dict[str, tuple[RowRange, ...]]:
    """Resolve groups to the ranges of each parameter.

    Parameters
    ----------
    rule : UpdateRule
        The rule if no group matches.
    groups : sequence of ParamGroup
        The groups, in order.
    heights : mapping of str to int
        Rows of each parameter.
    tables : mapping
        Storage -> rows of each table by logical name; all other parameters are one range each.
    small : mapping of str to int, optional
        Parameter -> most rows of a table that exact mode updates densely; by default 0.

    Raises
    ------
    ConfigError
        If a group matches no name.
    """
    names = [name for param in heights for name in tables.get(param, [param])]
    for group in groups:
        if not any(fnmatchcase(name, group.match) for name in names):
            near = get_close_matches(group.match, names, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"names are {', '.join(names[:8])} ..."
            raise ConfigError(f"group {group.match!r} matches no parameter or table; {hint}")
    ranges = {}
    for param, height in heights.items():
        parts = tables.get(param, {param: slice(0, height)})
        ordered = sorted(parts.items(), key=lambda item: item[1].start)
        found = [
            _range(name, rows, rule_of(name, rule, groups), small.get(param, 0))
            for name, rows in ordered
        ]
        ranges[param] = merge(found)
    return ranges


def _range(name: str, rows: slice, rule: UpdateRule, small: int) -> RowRange:
    decided = rule.with_update(rows.stop - rows.start <= small)
    return RowRange((name,), rows.start, rows.stop, decided)


def rule_of(name: str, rule: UpdateRule, groups: Sequence[ParamGroup]) -> UpdateRule:
    """Return the rule of a parameter or table; `rule` applies if no group matches."""
    for group in groups:
        if fnmatchcase(name, group.match):
            rule = _changed(rule, group)
    return rule


def _changed(rule: UpdateRule, group: ParamGroup) -> UpdateRule:
    """Return the rule with the options of a group; None leaves an option unchanged."""
    hyper = dict(rule.hyper)
    if group.lr is not None:
        hyper["lr"] = as_hyper_parameter(rule.formula, "lr", group.lr)
    if group.scale != 1:
        hyper["lr"] = _scaled(hyper["lr"], group.scale)
    names = ("weight_decay", "mode", "max_replayed_steps", "update")
    options = {name: getattr(group, name) for name in names if getattr(group, name) is not None}
    return replace(rule, hyper=tuple(hyper.items()), **options)


def _scaled(lr: float | Function, scale: float) -> float | Function:
    if isinstance(lr, Schedule):
        return constant(scale) * lr
    return Schedule((lr,)) * scale if callable(lr) else lr * scale


def merge(ranges: Sequence[RowRange]) -> tuple[RowRange, ...]:
    """Merge neighbours with the same rule; `ranges` are in ascending order."""
    merged: list[RowRange] = []
    for new in ranges:
        if merged and merged[-1].end == new.first and merged[-1].rule == new.rule:
            old = merged.pop()
            new = RowRange(old.names + new.names, old.first, new.end, new.rule)
        merged.append(new)
    return tuple(merged)
