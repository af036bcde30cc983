# SPDX-License-Identifier: Apache-2.0
"""Optimizer state: slots by parameter and name, the step count, and what steps keep for the next.

It reads like the dictionary ``{parameter: {slot: Tensor}}``. A checkpoint needs the slots and
`count` alone: the histories of exact mode are empty after a flush, which comes before every save.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain, groupby
from math import prod
from typing import Any, Literal, NamedTuple, Protocol

from sparsetrain import runtime
from sparsetrain.backend import Backend, host
from sparsetrain.kernels.table_formats import computed_in, is_half, keys_of, seen_as
from sparsetrain.optim.param_groups import ParamGroup, RowRange, Tables, abbreviate_names
from sparsetrain.optim.rule import Rule
from sparsetrain.runtime import NDArray
from sparsetrain.runtime.tensors import editable_numpy, to_device
from sparsetrain.sparse_tensor import CoalescePlan
from sparsetrain.tables.formula import Formula, KernelSpec, Slot
from sparsetrain.tables.replay import History

LAST = "last"  # the slot that exact mode adds: the step up to which each row is current
UNTOUCHED = -1  # in `last`: no step has touched this row


class RuleSource(Protocol):
    """The part of an `Optimizer` that its state and its steps know."""

    @property
    def full_formula(self) -> Formula:
        """The update of one element, with all slots."""

    @property
    def groups(self) -> Sequence[ParamGroup]:
        """The exceptions for some parameters."""

    @property
    def on_nonfinite(self) -> Literal["stop", "skip"]:
        """Reaction to NaN or infinity in a gradient."""

    @property
    def clip_norm(self) -> float | None:
        """The largest global norm of the gradients."""

    def rule(self, scaled: bool = False) -> Rule:
        """Return the rule of parameters that no group matches."""


class State(dict[str, dict[str, NDArray]]):
    """Slots by parameter and slot name.

    Attributes
    ----------
    count : Tensor (1,) int64
        Steps taken.
    skipped : int
        Steps left out because a number was not finite.
    owner : Optimizer
        The optimizer whose rules `ranges` holds.
    ranges : dict of str to tuple of RowRange
        The rules of each parameter.
    tables : mapping
        Parameter -> its tables by name, as slices of its rows.
    dtypes : mapping of str to str
        What each parameter is stored in.
    seed : int
        Of the random bits by which half-precision tables are rounded.
    scaled : bool
        Whether kernels multiply gradients by a factor.
    buffers : frozenset of str
        Parameters that are given new values in place of gradients.
    histories : dict
        Parameter and range number -> `History`, where rows are caught up.
    caught : dict
        Parameter -> what the last catch-up was for: its indices and their plan.
    plans : dict
        Parameter -> the gradient of the next step and the plan of its rows, if made in advance.
    backend : Backend
        Of the programs whose gradients come; it makes `update_steps`.
    update_steps : dict
        Names and kinds of gradients -> what takes steps with them, by the rules of `owner`.
    programs : dict
        Names and kinds of gradients, and layout -> the program of such steps.
    """

    def __init__(
        self,
        slots: dict[str, dict[str, NDArray]],
        owner: RuleSource,
        ranges: dict[str, tuple[RowRange, ...]],
        tables: Tables,
        dtypes: Mapping[str, str],
        seed: int = 0,
        scaled: bool = False,
        buffers: frozenset[str] = frozenset(),
        backend: Backend | None = None,
    ) -> None:
        super().__init__(slots)
        self.backend = backend or host()
        self.owner, self.ranges, self.tables = owner, ranges, tables
        self.dtypes, self.seed, self.scaled, self.buffers = dtypes, seed, scaled, buffers
        self.count = runtime.zeros((1,), "int64")
        self._counted = runtime.as_numpy(self.count, writable=True)
        self.skipped, self.lr_scale = 0, 1.0
        self.caught: dict[str, tuple[NDArray, CoalescePlan]] = {}
        self.plans: dict[str, tuple[Any, CoalescePlan]] = {}
        self.update_steps: dict[Any, Any] = {}
        self.programs: dict[Any, Any] = {}
        self.histories = {
            (name, number): History(spec, dtype=dtypes[name])
            for (name, number), spec in tracked(slots, ranges).items()
        }

    def __reduce__(self) -> Any:
        # `count` has two views, and caches of the last step belong to its tensors.
        raise TypeError(
            "the state of an optimizer is not pickled or copied: keep what is in it, "
            "{name: dict(slots) for name, slots in state.items()}, and state.step"
        )

    def __repr__(self) -> str:
        return f"<State: step {self.step}, slots of {len(self)} parameters>"

    @property
    def step(self) -> int:
        """Number of steps taken."""
        return int(self._counted[0])

    @step.setter
    def step(self, number: int) -> None:
        self._counted[0] = number

    def rules(self, names: Iterable[str]) -> tuple[Rule, ...]:
        """The rules of some parameters, each once."""
        return tuple(dict.fromkeys(part.rule for name in names for part in self.ranges[name]))

    def tensors(self) -> list[NDArray]:
        """All slots."""
        return [*chain.from_iterable(map(dict.values, self.values()))]

    def is_tracked(self, name: str) -> bool:
        """Return whether rows of a parameter are caught up."""
        return any((name, number) in self.histories for number in range(len(self.ranges[name])))

    def is_half(self, name: str) -> bool:
        """Return whether a parameter is stored in half precision."""
        return is_half(self.dtypes[name])

    def noise_keys(self, name: str, step: int) -> tuple[int, ...]:
        """Keys of the random bits of a step for a half-precision table; () for others."""
        return keys_of(self.seed, name, step) if is_half(self.dtypes[name]) else ()


def tracked(
    slots: Mapping[str, Mapping[str, NDArray]], ranges: Mapping[str, tuple[RowRange, ...]]
) -> dict[tuple[str, int], KernelSpec]:
    """Specs of the ranges that are caught up, by parameter and number of the range."""
    return {
        (name, number): part.rule.spec
        for name, parts in ranges.items()
        for number, part in enumerate(parts)
        if LAST in slots[name] and part.rule.catches_up
    }


def rows_of(shape: tuple[int, ...]) -> int:
    """Rows of a parameter: all axes but the last; a vector has rows of one element."""
    return prod(shape[:-1]) if len(shape) > 1 else prod(shape)


def slot_shape(slot: Slot, shape: tuple[int, ...]) -> tuple[int, ...]:
    """Shape of a slot of a parameter of some shape."""
    return (rows_of(shape),) if slot.per == "row" and len(shape) > 1 else shape


def new_slots(name: str, formula: Formula, param: NDArray, fill: bool = True) -> dict[str, NDArray]:
    """Slots of one parameter, with their initial values if `fill`."""
    return {slot.name: _new_slot(name, slot, param, fill) for slot in formula.slots}


def new_last(name: str, param: NDArray, parts: tuple[RowRange, ...], fill: bool = True) -> NDArray:
    """The steps up to which rows are current, (V,) int32."""
    shape = (rows_of(tuple(map(int, param.shape))),)
    tensor = runtime.empty(shape, "int32", f"slot {LAST!r} of parameter {name!r}")
    view = runtime.as_numpy(tensor, writable=True)
    for part in parts if fill else ():
        view[part.first : part.end] = (
            UNTOUCHED if part.rule.spec.noop_on_zero_grad == "untouched" else 0
        )
    return to_device(tensor, param.device, f"slot {LAST!r} of parameter {name!r}")


def set_last_(slots: Any, part: RowRange, step: int) -> None:
    """Note that all rows of a range are current."""
    with editable_numpy(slots[LAST]) as view:
        view[part.first : part.end] = step


def _new_slot(name: str, slot: Slot, param: NDArray, fill: bool) -> NDArray:
    shape = slot_shape(slot, tuple(map(int, param.shape)))
    what = f"slot {slot.name!r} of parameter {name!r}"
    tensor = runtime.empty(shape, computed_in(str(param.dtype)), what)
    if fill:
        runtime.as_numpy(tensor, writable=True)[...] = slot.initial
    return to_device(tensor, param.device, what)


class Target(NamedTuple):
    """A parameter and its slots, which kernels write."""

    param: NDArray
    slots: Mapping[str, NDArray]

    def views(self, spec: KernelSpec, rows: int, columns: int) -> list[NDArray]:
        """Return weight and slots as (rows, columns), or (rows,) where a slot is per row."""
        shapes = {"element": (rows, columns), "row": (rows,)}
        slots = spec.formula.slots
        weight = self.param._create_view((rows, columns), seen_as(self.param.dtype))
        return [weight, *(self.slots[s.name]._create_view(shapes[s.per]) for s in slots)]


def matrix_shape(shape: Sequence[int]) -> tuple[int, int]:
    """Return rows and columns of a parameter; a vector has rows of one element."""
    extents = tuple(map(int, shape))
    return rows_of(extents), extents[-1] if len(extents) > 1 else 1


def describe_tables(state: State) -> list[str]:
    """Describe how the rows of each table are updated; equal neighbours share a line."""
    return [
        f"{abbreviate_names([name for name, _ in group])}: {path}"
        for path, group in groupby(_tables_by_path(state), key=lambda table: table[1])
    ]


def count_tables(state: State) -> str:
    """Each path of updates, and how many tables take it."""
    counts = Counter(path.partition(";")[0] for _, path in _tables_by_path(state))
    return "; ".join(f"{path} ({n} table{'s'[: n - 1]})" for path, n in counts.items())


def _tables_by_path(state: State) -> list[tuple[str, str]]:
    return [
        (table, part.rule.path)
        for name in state.tables
        for part in state.ranges[name]
        for table in part.names
    ]
