# SPDX-License-Identifier: Apache-2.0
"""Validation of a new formula by running it on symbols and on NumPy arrays."""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import numpy as np
import tvm
from tvm import tirx

from sparsetrain.errors import ConfigError
from sparsetrain.tables.formula import Formula
from sparsetrain.tables.slots import RESERVED

KINDS = {"per": ("element", "row"), "noop_on_zero_grad": ("always", "untouched", "never")}


def check_formula(formula: Formula, hyper: Mapping[str, float]) -> None:
    """Check a formula by running it on symbols and arrays.

    Raises
    ------
    ConfigError
        If a name is reserved or used twice; if `slot_decay` or `noop_on_zero_grad` is wrong; if its
        step fails on symbols, returns the wrong number of slots, or computes a per-row slot from
        one element; or if a gradient of 0 changes a value despite `noop_on_zero_grad`.
    """
    names = [slot.name for slot in formula.slots]
    if any(slot.per not in KINDS["per"] for slot in formula.slots):
        raise ConfigError(f"{formula.name}: a slot's per must be 'element' or 'row'")
    if formula.noop_on_zero_grad not in KINDS["noop_on_zero_grad"]:
        raise ConfigError(
            f"{formula.name}: noop_on_zero_grad must be one of {KINDS['noop_on_zero_grad']}, "
            f"not {formula.noop_on_zero_grad!r}"
        )
    numbers = _numbers(formula, hyper)
    known = [*numbers, *(mean.name for mean in formula.row_means)]
    for kind, own in (("slot", names), ("number", known)):
        for name in own:
            if name in RESERVED[kind] or own.count(name) > 1:
                raise ConfigError(
                    f"{formula.name}: the {kind} {name!r} needs another name: this one is "
                    "reserved or used twice"
                )
    _check_slot_decay(formula, numbers)
    _check_step(formula, numbers)
    _check_zero_gradient(formula, hyper)


def _numbers(formula: Formula, hyper: Mapping[str, float]) -> tuple[str, ...]:
    if formula.per_step is None:
        return tuple(hyper)
    try:
        more = {name: float(value) for name, value in formula.per_step(hyper, 1).items()}
    except Exception as error:  # whatever the user's function raises
        raise ConfigError(f"{formula.name}: per_step fails in step 1: {error}") from error
    return (*hyper, *more)


def _check_slot_decay(formula: Formula, numbers: tuple[str, ...]) -> None:
    wrong = [name for name in formula.slot_decay if name not in (None, *numbers)]
    if wrong or (formula.slot_decay and len(formula.slot_decay) != len(formula.slots)):
        raise ConfigError(
            f"{formula.name}: slot_decay must have, for each slot, a number's name or None, not "
            f"{formula.slot_decay}"
        )


def _check_step(formula: Formula, numbers: tuple[str, ...]) -> None:
    weight, gradient = tirx.Var("w", "float32"), tirx.Var("g", "float32")
    slots = {slot: tirx.Var(slot.name, "float32") for slot in formula.slots}
    h = _symbols(*numbers, "count", "width")
    try:
        for mean in formula.row_means:
            mean.of(weight, gradient, tuple(slots.values()), h)
        vars(h).update(vars(_symbols(*(mean.name for mean in formula.row_means))))
        result = formula.step(weight, gradient, tuple(slots.values()), h)
    except Exception as error:  # whatever the user's function raises
        known = f"; the numbers are {sorted(vars(h))}" if getattr(error, "obj", None) is h else ""
        raise ConfigError(f"{formula.name}: step fails on symbols: {error}{known}") from error
    if not isinstance(result, tuple) or len(result) != 2 or isinstance(result[1], tvm.ir.Expr):
        raise ConfigError(f"{formula.name}: step must return (w, slots), slots being a tuple")
    new_slots = result[1]
    if len(new_slots) != len(slots):
        raise ConfigError(f"{formula.name}: {len(slots)} slots, but step returns {len(new_slots)}")
    single = [weight, gradient, *(var for slot, var in slots.items() if slot.per == "element")]
    for slot, value in zip(formula.slots, new_slots, strict=True):
        if slot.per == "row" and _uses(value, single):
            raise ConfigError(
                f"{formula.name}: the per-row slot {slot.name!r} depends on a single element; "
                "use row_means, which the elements of a row share"
            )


def _symbols(*names: str) -> SimpleNamespace:
    return SimpleNamespace(**{name: tirx.Var(name, "float32") for name in names})


def uses_count(formula: Formula) -> bool:
    """Return whether a formula reads `h.count`."""
    found = []

    class Watched(SimpleNamespace):
        """A namespace that records whether `count` is read."""

        def __getattr__(self, name: str) -> Any:
            found.append(name)
            return tirx.Var(name, "float32")

    h = Watched()
    weight, gradient = tirx.Var("w", "float32"), tirx.Var("g", "float32")
    slots = tuple(tirx.Var(slot.name, "float32") for slot in formula.slots)
    for mean in formula.row_means:
        mean.of(weight, gradient, slots, h)
    formula.step(weight, gradient, slots, h)
    return "count" in found


def _check_zero_gradient(formula: Formula, hyper: Mapping[str, float]) -> None:
    """Check `noop_on_zero_grad`, which decides which rows are skipped, with a gradient of 0.

    The trial uses the initial slots, for "always" also the slots after one step, in float32 as
    kernels do.
    """
    if formula.noop_on_zero_grad == "never":
        return
    more = formula.per_step(hyper, 1) if formula.per_step else {}
    with np.errstate(over="ignore"):
        numbers = {name: np.float32(value) for name, value in {**hyper, **more}.items()}
    weight = np.array([1.5, -0.25, 0.0], np.float32)

    def stepped(gradient: np.ndarray, slots: tuple[Any, ...]) -> list[Any]:
        h = SimpleNamespace(**numbers, count=np.float32(0), width=np.float32(3))
        means = {m.name: m.of(weight, gradient, slots, h).mean() for m in formula.row_means}
        vars(h).update(means)
        new, new_slots = formula.step(weight, gradient, slots, h)
        return [new, *new_slots]

    tried = [tuple(np.full_like(weight, slot.initial) for slot in formula.slots)]
    try:
        with np.errstate(all="ignore"):
            if formula.noop_on_zero_grad == "always":
                tried.append(tuple(stepped(np.ones_like(weight), tried[0])[1:]))
            after = [stepped(np.zeros_like(weight), slots) for slots in tried]
    except Exception:  # such a step accepts only symbols
        return
    for slots, found in zip(tried, after, strict=True):
        if not all(map(np.array_equal, found, (weight, *slots))):
            raise ConfigError(
                f"{formula.name}: noop_on_zero_grad is {formula.noop_on_zero_grad!r}, but with "
                "these numbers a gradient of 0 changes a weight or a slot, or makes them NaN"
            )


def _uses(value: Any, variables: list[tirx.Var]) -> bool:
    used = tirx.analysis.undefined_vars(value) if isinstance(value, tvm.ir.Expr) else ()
    return any(var.same_as(other) for var in used for other in variables)
