# SPDX-License-Identifier: Apache-2.0
"""Update formula: an optimizer's rule for one element, and how kernels apply it.

One function generates the dense kernel, the in-place row kernel, the kernel that replays missed
steps and, with NumPy arrays instead of symbols, the reference for tests.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any, Literal, NamedTuple, Protocol

import numpy as np
import tvm
from tvm import tirx

Step = Callable[[Any, Any, tuple[Any, ...], SimpleNamespace], tuple[Any, tuple[Any, ...]]]
PerStep = Callable[[Mapping[str, float], int], dict[str, float]]


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


class RowMean(NamedTuple):
    """A number shared by a row's elements: the mean of a term over them.

    Parameters
    ----------
    name : str
        Name of the mean in the `h` of a step.
    of : callable
        ``of(w, g, slots, h)``: the term of one element; arguments are as for `step`, but `h` lacks
        the means.

    Examples
    --------
    >>> # |w|^2 is this mean times h.width
    >>> norm = RowMean("mean_square", lambda w, g, slots, h: w * w)
    """

    name: str
    of: Callable[[Any, Any, tuple[Any, ...], SimpleNamespace], Any]


class Formula(NamedTuple):
    """One step of an optimizer on one element.

    Parameters
    ----------
    name : str
        Name in settings and messages.
    step : callable
        ``step(w, g, slots, h) -> (w, slots)``: weight, gradient, the slots' values and a namespace
        of hyper-parameters -> the new weight and slots. It may use only arithmetic and the
        functions of this module, since it is called with symbols, and in tests with NumPy arrays.
        The new value of a per-row slot may depend on per-row slots and ``h``, not on a single
        element. ``h.count`` is the number of the row's ids in the batch: 0 for an untouched row,
        and in a dense gradient.
    slots : tuple of Slot
        The state that the formula needs.
    row_means : tuple of RowMean
        Means over a row, by name in ``h``; with them ``h.width`` is the number of columns.
    per_step : callable, optional
        ``per_step(hyper, step) -> dict``: more numbers for ``h``, from a step's hyper-parameters
        and number, which starts at 1. Computed once per step in float64, then rounded once.
    noop_on_zero_grad : {"always", "untouched", "never"}
        When a gradient of 0 changes neither weight nor slots: always (SGD), while the slots have
        their initial values (Adam), or never, the safe default. It decides which steps
        ``mode="exact"`` replays.
    slot_decay : tuple of (str or None)
        For each slot, the name of the number that multiplies it in a step with gradient 0, or None
        if it stays unchanged. ``max_replayed_steps`` uses it to skip steps.
    decays : bool
        Whether the formula has ``weight_decay``.
    """

    name: str
    step: Step
    slots: tuple[Slot, ...] = ()
    row_means: tuple[RowMean, ...] = ()
    per_step: PerStep | None = None
    noop_on_zero_grad: Literal["always", "untouched", "never"] = "never"
    slot_decay: tuple[str | None, ...] = ()
    decays: bool = True

    @property
    def by_row(self) -> bool:
        """Whether a row shares values, so that dense parameters are viewed as (rows, columns)."""
        return bool(self.row_means) or any(slot.per == "row" for slot in self.slots)


def sqrt(x: Any) -> Any:
    """Square root of a symbol or of an array."""
    return tirx.sqrt(x) if _is_symbol(x) else np.sqrt(x)


def exp(x: Any) -> Any:
    """Exponential of a symbol or of an array."""
    return tirx.exp(x) if _is_symbol(x) else np.exp(x)


def abs(x: Any) -> Any:
    """Absolute value of a symbol or of an array."""
    return tirx.abs(x) if _is_symbol(x) else np.abs(x)


def sign(x: Any) -> Any:
    """-1, 0 or 1 by the sign of a symbol or of an array; NaN stays NaN."""
    return where(x > 0, 1.0, where(x < 0, -1.0, x)) if _is_symbol(x) else np.sign(x)


def maximum(x: Any, y: Any) -> Any:
    """The larger of two symbols or arrays."""
    return tirx.max(x, y) if _is_symbol(x, y) else np.maximum(x, y)


def minimum(x: Any, y: Any) -> Any:
    """The smaller of two symbols or arrays."""
    return tirx.min(x, y) if _is_symbol(x, y) else np.minimum(x, y)


def where(condition: Any, x: Any, y: Any) -> Any:
    """`x` where a comparison of symbols or arrays holds, else `y`; both are computed."""
    if not _is_symbol(condition):
        return np.where(condition, x, y)
    dtype = next((value.ty.dtype for value in (x, y) if _is_symbol(value)), "float32")
    chosen = (value if _is_symbol(value) else tirx.const(value, dtype) for value in (x, y))
    return tirx.Select(condition, *chosen)


def _is_symbol(*values: Any) -> bool:
    return any(isinstance(value, tvm.ir.Expr) for value in values)


class KernelSpec(NamedTuple):
    """What a kernel is generated from: a formula, and how gradients are scaled, clipped, decayed.

    With shapes and dtypes, it is the key of a kernel. The order is PyTorch's: scale (global norm),
    clip by value, then decay. Coupled decay adds ``weight_decay * w`` to the gradient. Decoupled
    decay multiplies the weight by ``keep``, which is ``1 - lr * weight_decay``, computed on the
    host in float64, and leaves the gradient alone.

    Parameters
    ----------
    formula : Formula
        The rule.
    numbers : tuple of str
        Names of the scalars of a step, in order; see `UpdateRule.numbers`.
    decay : {None, "coupled", "decoupled"}
        Kind of weight decay.
    scaled, clipped : bool
        Whether the gradient is multiplied by ``h.scale``, and limited to ``h.clip``.
    closed : bool
        Whether many missed steps are applied as one product of `transition` matrices, instead of
        being replayed one by one.
    lags : bool
        Whether rows can lag: an update of touched rows then writes its step to the slot `last`.
    """

    formula: Formula
    numbers: tuple[str, ...]
    decay: Literal["coupled", "decoupled"] | None = None
    scaled: bool = False
    clipped: bool = False
    closed: bool = False
    lags: bool = False

    @property
    def at_zero(self) -> KernelSpec:
        """The spec for gradients of 0, which scaling and clipping do not change."""
        return self.of_all_rows._replace(scaled=False, clipped=False)

    @property
    def of_all_rows(self) -> KernelSpec:
        """The spec for an update of all rows, so that none lags."""
        return self._replace(lags=False)

    @property
    def order(self) -> int:
        """Number of an element's values that a step changes: the weight and its slots."""
        return 1 + len(self.formula.slots)

    def transition(self, numbers: Sequence[float]) -> np.ndarray:
        """The matrix of a step without a gradient, if it is linear: (K, K) float64, K = `order`.

        Parameters
        ----------
        numbers : sequence of float
            The step's numbers, which kernels read in float32.
        """
        weight, *slots = self.stepped(np.eye(self.order), numbers)
        return np.stack([weight, *slots])

    def stepped(self, values: np.ndarray, numbers: Sequence[float]) -> list[Any]:
        """Return weights and slots after a step without a gradient; `values` has the old ones."""
        rounded = map(float, np.asarray(numbers, np.float32))
        h = SimpleNamespace(**dict(zip(self.numbers, rounded, strict=True)), count=0.0)
        weight, gradient = self.at_zero.prepare(values[0], np.zeros_like(values[0]), h)
        weight, slots = self.formula.step(weight, gradient, tuple(values[1:]), h)
        return [weight, *slots]

    def is_linear(self, numbers: Sequence[float]) -> bool:
        """Whether a step without a gradient is linear in weight and slots, found by a trial."""
        if self.formula.by_row:
            return False
        values = np.random.default_rng(0).uniform(0.1, 10, (self.order, 64))
        try:
            with np.errstate(all="ignore"):
                found = np.stack(self.stepped(values, numbers))
                made = self.transition(numbers) @ values
        except Exception:  # such a step accepts only symbols
            return False
        return np.allclose(found, made, rtol=1e-12, atol=1e-12)

    @property
    def noop_on_zero_grad(self) -> str:
        """When a gradient of 0 changes nothing; never with decay."""
        return "never" if self.decay else self.formula.noop_on_zero_grad

    @property
    def scalars(self) -> tuple[str, ...]:
        """Names of all scalar arguments of a kernel, in order."""
        return self.numbers + ("scale",) * self.scaled + ("clip",) * self.clipped

    def prepare(self, weight: Any, gradient: Any, h: SimpleNamespace) -> tuple[Any, Any]:
        """Weight and gradient after scale, clipping and decay."""
        if self.scaled:
            gradient = gradient * h.scale
        if self.clipped:
            gradient = minimum(maximum(gradient, -h.clip), h.clip)
        if self.decay == "coupled":
            gradient = gradient + h.weight_decay * weight
        if self.decay == "decoupled":
            weight = weight * h.keep
        return weight, gradient


class Rule(Protocol):
    """The part of an optimizer's rule that describes a row's missed steps."""

    @property
    def spec(self) -> KernelSpec:
        """What the kernels are generated from: formula, scalar names, decay, scaling, clipping."""

    @property
    def has_last(self) -> bool:
        """Whether rows have the slot `last`."""

    @property
    def dense(self) -> bool:
        """Whether every row is updated in every step."""

    @property
    def max_replayed_steps(self) -> int | None:
        """Most steps to replay for a row, one by one."""


class Range(Protocol):
    """Rows [first, end) that follow one rule; `names` are the tables in it."""

    @property
    def names(self) -> tuple[str, ...]:
        """Tables in these rows."""

    @property
    def first(self) -> int:
        """The first row."""

    @property
    def end(self) -> int:
        """The end of the rows."""

    @property
    def rule(self) -> Rule:
        """The rule that these rows follow."""
