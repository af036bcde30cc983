# SPDX-License-Identifier: Apache-2.0
"""Averages of weights over steps (EMA, SWA), as one more slot of a formula.

The slot holds the average minus the weight. It begins at 0 and stays 0 while the weight does not
change, so untouched rows need no work, and exact mode replays the steps that a row missed.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any, NamedTuple

from tvm.script.ir_builder import tirx as T

from sparsetrain import runtime
from sparsetrain.errors import ConfigError
from sparsetrain.runtime import NDArray
from sparsetrain.runtime.tensors import to_device
from sparsetrain.system.argument_checks import is_number, require_int
from sparsetrain.tables.formula import Formula, RowMean, Slot
from sparsetrain.tables.multiply_add import fuse_multiply_adds

AVERAGE = "average"  # name of the slot, and of the earlier average's factor in `h`


class Average(NamedTuple):
    """An average of all weights, which a model uses to score; made by `ema` or `swa`.

    Call it with a step's number to get the factor that multiplies the earlier average.

    Parameters
    ----------
    decay : float or None
        Decay rate of an exponential average; None gives all weights the same factor.
    start : int
        Until this step, the average is the weight itself.
    every : int
        Number of steps between two weights in the average.
    """

    decay: float | None
    start: int = 0
    every: int = 1

    def __call__(self, step: int) -> float:
        """Return the factor of the earlier average in a step; steps count from 1."""
        if step <= self.start:
            return 0.0
        count, rest = divmod(step - self.start, self.every)
        if rest:
            return 1.0
        return count / (count + 1) if self.decay is None else self.decay


def ema(decay: float = 0.999) -> Average:
    """Exponential moving average: ``average <- decay average + (1 - decay) w`` after every step.

    Raises
    ------
    ConfigError
        If `decay` is not from 0 to below 1.

    Examples
    --------
    >>> ema(0.99)(1)
    0.99
    """
    if not (is_number(decay) and 0 <= decay < 1):
        raise ConfigError(f"ema: decay is {decay!r}; it must be from 0 to below 1")
    return Average(float(decay))


def swa(start: int, every: int = 1) -> Average:
    """Stochastic weight averaging: the mean of the weights every `every` steps from `start` on.

    References
    ----------
    Izmailov et al. 2018, https://arxiv.org/abs/1803.05407, algorithm 1

    Raises
    ------
    ConfigError
        If `start` or `every` is below 1.

    Examples
    --------
    >>> [swa(start=10, every=5)(step) for step in (10, 12, 15, 20)]
    [0.0, 1.0, 0.5, 0.6666666666666666]
    """
    return Average(None, require_int("swa: start", start), require_int("swa: every", every))


def as_average(value: Any) -> Average | None:
    """Return an average from an `Average`, a decay, or a list in a manifest.

    Raises
    ------
    ConfigError
        If the argument has none of these forms.
    """
    if value is None or isinstance(value, Average):
        return value
    return Average(*value) if isinstance(value, list) else ema(value)


@cache
def averaged(formula: Formula) -> Formula:
    """Return the formula with a slot added for the averaged weights.

    Raises
    ------
    ConfigError
        If the formula already has a slot of this name.
    """
    if AVERAGE in [slot.name for slot in formula.slots]:
        raise ConfigError(f"{formula.name}: rename its slot {AVERAGE!r}, which average= uses")

    def step(w: Any, g: Any, slots: tuple[Any, ...], h: Any) -> tuple[Any, tuple[Any, ...]]:
        *own, apart = slots
        new, kept = formula.step(w, g, tuple(own), h)
        new = T.Bind(fuse_multiply_adds(new))  # so that w - (w - x) is not simplified
        before = w / h.keep if hasattr(h, "keep") else w  # undoes decoupled decay
        # The sum comes last: LLVM would fuse a product with the sum of the next step if it saw
        # both.
        return new, (*kept, h.average * apart + h.average * (before - new))

    fades = len(formula.slot_decay) == len(formula.slots)
    return formula._replace(
        step=step,
        slots=(*formula.slots, Slot(AVERAGE)),
        row_means=tuple(RowMean(mean.name, _without_average(mean)) for mean in formula.row_means),
        noop_on_zero_grad="never" if formula.noop_on_zero_grad == "never" else "untouched",
        slot_decay=(*formula.slot_decay, AVERAGE) if fades else (),
    )


def _without_average(mean: RowMean) -> Any:
    return lambda w, g, slots, h: mean.of(w, g, slots[:-1], h)


def averages(
    params: Mapping[str, NDArray], slots: Mapping[str, Mapping[str, NDArray]]
) -> dict[str, NDArray]:
    """Return the averages of parameters; a parameter without an average is returned unchanged.

    Precondition: the rows are up to date. Cost: the memory of all parameters, and a pass over them.
    """
    return {
        name: _average(param, slots[name][AVERAGE]) if AVERAGE in slots.get(name, {}) else param
        for name, param in params.items()
    }


def _average(param: NDArray, apart: NDArray) -> NDArray:
    total = runtime.as_numpy(param) + runtime.as_numpy(apart)
    return to_device(runtime.as_tensor(total), param.device)
