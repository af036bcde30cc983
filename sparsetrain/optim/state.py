# SPDX-License-Identifier: Apache-2.0
"""Optimizer state: slots by parameter and name, the step count, and values kept between steps.

It is a dictionary ``{parameter: {slot: Tensor}}``. A checkpoint needs only the slots and `count`:
every save flushes first, and after a flush tables have no history of missed steps.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import Any, Literal, Protocol

from sparsetrain.backend import Backend, host
from sparsetrain.optim.param_groups import ParamGroup, abbreviate_names
from sparsetrain.optim.update_rule import UpdateRule
from sparsetrain.runtime import NDArray
from sparsetrain.sparse_tensor import CoalescePlan
from sparsetrain.tables.collection import Tables
from sparsetrain.tables.formula import Formula


class RuleSource(Protocol):
    """The part of an `Optimizer` that its state and its steps use."""

    @property
    def full_formula(self) -> Formula:
        """The update of one element, with all slots."""

    @property
    def groups(self) -> Sequence[ParamGroup]:
        """Groups of parameters with options of their own."""

    @property
    def on_nonfinite(self) -> Literal["stop", "skip"]:
        """Reaction to NaN or infinity in a gradient: raise, or skip the step."""

    @property
    def clip_norm(self) -> float | None:
        """Limit of the gradients' global norm, if any."""

    def rule(self, scaled: bool = False) -> UpdateRule:
        """Return the rule of parameters that no group matches."""


class State(dict[str, dict[str, NDArray]]):
    """Slots by parameter and slot name.

    Attributes
    ----------
    skipped : int
        Number of steps skipped because a value was not finite.
    owner : Optimizer
        The optimizer that made the tables' rules.
    tables : Tables
        Each parameter with its slots and rules, and the count of steps.
    seed : int
        Seed of the random bits that round half-precision tables.
    scaled : bool
        Whether kernels multiply gradients by a factor.
    buffers : frozenset of str
        Parameters that a step overwrites: their `gradient` is the new value.
    plans : dict
        Parameter -> the gradient of the next step and the plan of its rows, if made in advance.
    backend : Backend
        The backend of the gradients; it makes the entries of `update_steps`.
    update_steps : dict
        Names and kinds of gradients -> the `Step` for them, with the rules of `owner`.
    programs : dict
        (names and kinds of gradients, layout) -> the compiled program of these steps.
    """

    def __init__(
        self,
        tables: Tables,
        owner: RuleSource,
        seed: int = 0,
        scaled: bool = False,
        buffers: frozenset[str] = frozenset(),
        backend: Backend | None = None,
    ) -> None:
        super().__init__({table.name: table.slots for table in tables.each()})
        self.tables, self.owner = tables, owner
        self.backend = backend or host()
        self.seed, self.scaled, self.buffers = seed, scaled, buffers
        self.skipped, self.lr_scale = 0, 1.0
        self.plans: dict[str, tuple[Any, CoalescePlan]] = {}
        self.update_steps: dict[Any, Any] = {}
        self.programs: dict[Any, Any] = {}

    def __reduce__(self) -> Any:
        # `count` has two views, and the caches of the last step refer to these tensors.
        raise TypeError(
            "the state of an optimizer cannot be pickled or copied: keep its content, "
            "{name: dict(slots) for name, slots in state.items()}, and state.step"
        )

    def __repr__(self) -> str:
        return f"<State: step {self.step}, slots of {len(self)} parameters>"

    @property
    def count(self) -> NDArray:
        """Steps taken, (1,) int64."""
        return self.tables.count

    @property
    def step(self) -> int:
        """Number of steps taken."""
        return self.tables.step

    @step.setter
    def step(self, number: int) -> None:
        self.tables.step = number

    def rules(self, names: Iterable[str]) -> tuple[UpdateRule, ...]:
        """Return the distinct rules of some parameters."""
        return tuple(
            dict.fromkeys(part.rule for name in names for part in self.tables.table(name).ranges)
        )


def describe_tables(state: State) -> list[str]:
    """Describe how the rows of each table are updated; equal neighbors share a line."""
    return [
        f"{abbreviate_names([name for name, _ in group])}: {path}"
        for path, group in groupby(_tables_by_path(state), key=lambda table: table[1])
    ]


def count_tables(state: State) -> str:
    """Return each way of updating tables, with the number of tables."""
    counts = Counter(path.partition(";")[0] for _, path in _tables_by_path(state))
    return "; ".join(f"{path} ({n} table{'s'[: n - 1]})" for path, n in counts.items())


def _tables_by_path(state: State) -> list[tuple[str, str]]:
    return [
        (name, part.rule.path)
        for table in state.tables.each()
        if table.named
        for part in table.ranges
        for name in part.names
    ]
