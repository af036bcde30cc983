# SPDX-License-Identifier: Apache-2.0
"""One step in progress: every gradient to its parameter, range by range, by the path of its rule.

Nothing is written before all plans are made and found current.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from sparsetrain import runtime
from sparsetrain.errors import ConfigError, DataError
from sparsetrain.optim.apply import (
    Target,
    densified,
    matrix_shape,
    replay_,
    segment_spans,
    trivial_plan,
    update_dense_,
    update_rows_,
)
from sparsetrain.optim.gradients import Gradient
from sparsetrain.optim.group import Range
from sparsetrain.optim.rule import Rule
from sparsetrain.optim.state import State, last_of
from sparsetrain.runtime import NDArray
from sparsetrain.sparse_tensor import CoalescePlan, RowSparse


class Step:
    """The step after `state.step`; `scale` multiplies all gradients whose rules want it."""

    def __init__(self, params: Mapping[str, NDArray], state: State, scale: float) -> None:
        self.params, self.state, self.scale = params, state, scale
        self.step = state.step + 1
        self._numbers: dict[Rule, tuple[float, ...]] = {}

    def find_numbers(self, names: Iterable[str]) -> None:
        """Ask every schedule for this step, so that one that fails does so before a write."""
        for part in (part for name in names for part in self.state.ranges[name]):
            self._numbers_of(part.rule)

    def plan(self, name: str, gradient: RowSparse) -> CoalescePlan:
        """The plan of a gradient, the one of the catch-up if that was for the same rows."""
        known = self.state.caught.get(name)
        indices = runtime.as_numpy(gradient.indices)
        if known is not None and np.array_equal(known[0], indices):
            return known[1]
        plan = trivial_plan(gradient) if gradient.coalesced else gradient.plan()
        spans = segment_spans(plan, self.state.ranges[name])
        for number, span in enumerate(spans):
            if (name, number) not in self.state.histories:
                continue
            if replay_range_(self.params, self.state, name, number, (plan, span)):
                raise ConfigError(
                    f"optimizer: rows of {name!r} were read while steps behind: in exact mode call "
                    "catch_up_ before the program; they are current now"
                )
        return plan

    def update_(self, name: str, gradient: Gradient, plan: CoalescePlan | None) -> None:
        """Update one parameter, range by range."""
        parts = self.state.ranges[name]
        spans = [None] * len(parts) if plan is None else segment_spans(plan, parts)
        for number, (part, span) in enumerate(zip(parts, spans, strict=True)):
            history = self.state.histories.get((name, number))
            numbers = self._numbers_of(part.rule)
            if span is None or plan is None or not isinstance(gradient, RowSparse):
                self._dense_(name, gradient, number, numbers)
            elif part.rule.mode == "dense":
                dense = densified(gradient, plan, part, span)
                self._range_(name, dense, part, numbers)
            else:
                now = None if history is None else history.now + 1
                scalars = self._scalars(part.rule, numbers)
                target = Target(self.params[name], self.state[name])
                update_rows_(target, gradient, plan, part.rule, scalars, span, now)
            if history is not None:
                history.append(numbers)

    def _dense_(self, name: str, gradient: Any, number: int, numbers: tuple[float, ...]) -> None:
        """A dense gradient: all rows must be current before, and are after."""
        part = self.state.ranges[name][number]
        history = self.state.histories.get((name, number))
        if history is not None:
            replay_range_(self.params, self.state, name, number, None)
        rows = matrix_shape(self.params[name])[0]
        if (part.first, part.end) != (0, rows):
            width = matrix_shape(self.params[name])[1]
            view = runtime.as_numpy(gradient).reshape(rows, width)
            gradient = runtime.as_tensor(view[part.first : part.end])
        self._range_(name, gradient, part, numbers)
        if history is not None:
            last_of(self.state[name], part)[...] = history.now + 1

    def _range_(
        self, name: str, gradient: NDArray, part: Range, numbers: tuple[float, ...]
    ) -> None:
        target = Target(self.params[name], self.state[name])
        scalars = self._scalars(part.rule, numbers)
        update_dense_(target, gradient, part.rule, scalars, (part.first, part.end))

    def _numbers_of(self, rule: Rule) -> tuple[float, ...]:
        if rule not in self._numbers:
            self._numbers[rule] = rule.numbers(self.step)
        return self._numbers[rule]

    def _scalars(self, rule: Rule, numbers: tuple[float, ...]) -> tuple[float, ...]:
        """The numbers as the kernels take them, with the factor and the limit of the gradient."""
        scale = (self.scale,) if rule.scaled else ()
        return (*numbers, *scale, *(() if rule.clip_value is None else (rule.clip_value,)))


def replay_range_(
    params: Mapping[str, NDArray],
    state: State,
    name: str,
    number: int,
    segments: tuple[CoalescePlan, tuple[int, int]] | None,
) -> int:
    """Catch up the rows of a plan that lie in a range, or with None all rows of the range."""
    part = state.ranges[name][number]
    plan, span = (None, (part.first, part.end)) if segments is None else segments
    target = Target(params[name], state[name])
    return replay_(target, part.rule, state.histories[name, number], plan, span)


def checked_rows(name: str, indices: Any, rows: int) -> NDArray:
    """Row numbers (N,) of a table, from an integer array of any shape."""
    array = np.ravel(runtime.as_numpy(indices) if isinstance(indices, runtime.NDArray) else indices)
    if array.size and (array.min() < 0 or array.max() >= rows):
        bad = int(array[(array < 0) | (array >= rows)][0])
        raise DataError(f"catch_up: row {bad} is outside the {rows} rows of {name!r}")
    return runtime.as_tensor(array, "int32" if array.dtype == np.int32 else "int64")
