# SPDX-License-Identifier: Apache-2.0
"""An update rule as a formula, written once for one element.

From the same text come the dense kernel, the in-place row kernel and, with NumPy arrays in place
of symbols, the reference that the tests compare both with.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from types import SimpleNamespace
from typing import Any, Literal, NamedTuple

import numpy as np
import tvm
from tvm import tirx

from sparsetrain.errors import ConfigError

Step = Callable[[Any, Any, tuple[Any, ...], SimpleNamespace], tuple[Any, tuple[Any, ...]]]


class Slot(NamedTuple):
    """One piece of an optimizer's state for a parameter.

    Parameters
    ----------
    name : str
        Its name in the state and in a checkpoint.
    per : {"element", "row"}
        One number for each element of the parameter, or one for each row.
    initial : float
        Value before the first step.
    """

    name: str
    per: Literal["element", "row"] = "element"
    initial: float = 0.0


class Formula(NamedTuple):
    """How one step changes one element.

    Parameters
    ----------
    name : str
        Name in settings and messages.
    step : callable
        ``step(w, g, slots, h) -> (w, slots)``: weight, gradient, the slots' values and a namespace
        of hyper-parameters, to the new weight and slots. Only arithmetic and the functions of this
        module: it is called with symbols, and with NumPy arrays in tests. The new value of a
        per-row slot may depend on per-row slots, ``h`` and ``h.row_mean``, not on one element.
    slots : tuple of Slot
        The state it needs.
    row_mean : callable, optional
        ``row_mean(g)`` is averaged over a row before the step and given to it as ``h.row_mean``.
    """

    name: str
    step: Step
    slots: tuple[Slot, ...] = ()
    row_mean: Callable[[Any], Any] | None = None


def sqrt(x: Any) -> Any:
    """Square root of a symbol or of an array."""
    return tirx.sqrt(x) if isinstance(x, tvm.ir.Expr) else np.sqrt(x)


def check_formula(formula: Formula, hyper: Iterable[str]) -> None:
    """Try a formula on symbols, so that a wrong one fails here and not in the middle of a step.

    Raises
    ------
    ConfigError
        If its step fails on symbols, returns another number of slots than it has, or computes a
        per-row slot from a single element.
    """
    names = [slot.name for slot in formula.slots]
    if len(set(names)) < len(names) or any(s.per not in ("element", "row") for s in formula.slots):
        raise ConfigError(f"{formula.name}: slots need names that differ, per 'element' or 'row'")
    weight, gradient = tirx.Var("w", "float32"), tirx.Var("g", "float32")
    slots = {slot: tirx.Var(slot.name, "float32") for slot in formula.slots}
    h = SimpleNamespace(**{name: tirx.Var(name, "float32") for name in hyper})
    try:
        if formula.row_mean is not None:
            formula.row_mean(gradient)
            h.row_mean = tirx.Var("row_mean", "float32")
        _, new_slots = formula.step(weight, gradient, tuple(slots.values()), h)
    except Exception as error:  # whatever the user's function raises
        raise ConfigError(f"{formula.name}: step fails on symbols: {error}") from error
    if len(new_slots) != len(names):
        raise ConfigError(f"{formula.name}: {len(names)} slots, but step gives {len(new_slots)}")
    single = [weight, gradient, *(var for slot, var in slots.items() if slot.per == "element")]
    for slot, value in zip(formula.slots, new_slots, strict=True):
        used = tirx.analysis.undefined_vars(value) if isinstance(value, tvm.ir.Expr) else ()
        if slot.per == "row" and any(var.same_as(element) for var in used for element in single):
            raise ConfigError(
                f"{formula.name}: the per-row slot {slot.name!r} depends on a single element; "
                "use h.row_mean, the average of row_mean over the row"
            )
