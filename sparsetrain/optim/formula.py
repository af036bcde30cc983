# SPDX-License-Identifier: Apache-2.0
"""An update rule as a formula, written once for one element.

From the same text come the dense kernel, the in-place row kernel and, with NumPy arrays in place
of symbols, the reference that the tests compare both with.
"""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, Literal, NamedTuple

import numpy as np
import tvm
from tvm import tirx

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
        module: it is called with symbols, and with NumPy arrays in tests.
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
