# SPDX-License-Identifier: Apache-2.0
"""Slots: the arrays of optimizer state, their shapes, and the parameter dtypes that allow them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from typing import Any, NamedTuple

from sparsetrain import runtime
from sparsetrain.errors import ConfigError
from sparsetrain.kernels.table_formats import format_of
from sparsetrain.runtime import NDArray
from sparsetrain.runtime.tensors import to_device
from sparsetrain.tables.formula import Formula, KernelSpec, Slot

LAST = "last"  # the slot of exact mode: the step up to which each row is current
UNTOUCHED = -1  # in `last`: no step has touched this row
# Names that kernels add to a formula's slots, and to the numbers in its `h`.
RESERVED = {
    "slot": (LAST,),
    "number": ("count", "width", "weight_decay", "keep", "scale", "clip", "keys", "numbers", "now"),
}


def rows_of(shape: tuple[int, ...]) -> int:
    """Rows of a parameter: all axes but the last; a vector has rows of one element."""
    return prod(shape[:-1]) if len(shape) > 1 else prod(shape)


def matrix_shape(shape: Sequence[int]) -> tuple[int, int]:
    """Return rows and columns of a parameter; a vector has rows of one element."""
    extents = tuple(map(int, shape))
    return rows_of(extents), extents[-1] if len(extents) > 1 else 1


def slot_shape(slot: Slot, shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return the shape of a slot, given the parameter's shape."""
    return (rows_of(shape),) if slot.per == "row" and len(shape) > 1 else shape


def slots_of(spec: KernelSpec, dtype: str) -> list[tuple[Slot, str]]:
    """The slots that an update writes, with their dtypes; `dtype` is the parameter's."""
    computed = format_of(dtype).computed
    own = [(slot, computed) for slot in spec.formula.slots]
    return [*own, (Slot(LAST, "row"), "int32")] if spec.lags else own


def new_slots(name: str, formula: Formula, param: NDArray, fill: bool = True) -> dict[str, NDArray]:
    """Return the slots of one parameter, with initial values if `fill`."""
    return {slot.name: _new_slot(name, slot, param, fill) for slot in formula.slots}


def _new_slot(name: str, slot: Slot, param: NDArray, fill: bool) -> NDArray:
    shape = slot_shape(slot, tuple(map(int, param.shape)))
    what = f"slot {slot.name!r} of parameter {name!r}"
    tensor = runtime.empty(shape, format_of(str(param.dtype)).computed, what)
    if fill:
        runtime.as_numpy(tensor, writable=True)[...] = slot.initial
    return to_device(tensor, param.device, what)


def check_rules(name: str, dtype: str, ranges: Sequence[Any], average: bool) -> None:
    """Refuse rules that a table's dtype does not support.

    Raises
    ------
    ConfigError
        If one does not; the message names the parameter and the fix.
    """
    stored = format_of(dtype)
    if average and stored.rounded:
        raise ConfigError(
            f"optimizer: average needs float32 parameters, but {name!r} is {dtype}: store it in "
            "float32, or remove average"
        )
    if not stored.beside:
        return
    formula = ranges[0].rule.formula
    whole = [slot.name for slot in formula.slots if slot.per == "element"]
    if whole:
        raise ConfigError(
            f"optimizer: {name!r} is {dtype}, and {formula.name} keeps a whole row of "
            f"{whole[0]!r} beside each of its rows: take rowwise_adagrad or sgd, or float32 tables"
        )
    if any(part.rule.has_last or part.rule.dense for part in ranges):
        raise ConfigError(
            f"optimizer: {name!r} is {dtype}, which takes updates of touched rows alone: leave out "
            "mode and update, or take float32 tables"
        )


class Span(NamedTuple):
    """Rows [first, end) of a parameter; row i is row ``begin + step * i`` of the whole table."""

    first: int
    end: int
    begin: int = 0
    step: int = 1


class Target(NamedTuple):
    """A parameter and its slots, which kernels write."""

    param: NDArray
    slots: Mapping[str, NDArray]

    def views(self, spec: KernelSpec, rows: int, columns: int) -> list[NDArray]:
        """Return weight and slots as (rows, columns), or (rows,) for a per-row slot."""
        shapes = {"element": (rows, columns), "row": (rows,)}
        dtype = str(self.param.dtype)
        weight = self.param._create_view((rows, columns), format_of(dtype).seen)
        slots = [(self.slots[slot.name], slot.per) for slot, _ in slots_of(spec, dtype)]
        return [weight, *(slot._create_view(shapes[per]) for slot, per in slots)]
