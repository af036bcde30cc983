# SPDX-License-Identifier: Apache-2.0
"""Learning rate schedules: products of factors, each a function of the step.

Steps count from 1. ``0.02 * warmup(500) * cosine(10_000)`` rises for 500 steps, then follows the
cosine. Any function of the step is a schedule; a run can save only this module's.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import cos, isfinite, pi, sqrt
from typing import Any

from sparsetrain.errors import ConfigError
from sparsetrain.system.argument_checks import is_number, require_int

Function = Callable[[int], float]


@dataclass(frozen=True)
class Factor:
    """One factor of a schedule: its name and numbers."""

    name: str
    numbers: tuple[tuple[str, float], ...]

    def __call__(self, step: int) -> float:
        """Return the factor in a step."""
        return FACTORS[self.name](step, **dict(self.numbers))

    def __repr__(self) -> str:
        numbers = ", ".join(f"{name}={number!r}" for name, number in self.numbers)
        return f"{self.name}({numbers})"


@dataclass(frozen=True)
class Schedule:
    """A product of functions of the step; multiply it with numbers, schedules or functions.

    Examples
    --------
    >>> from sparsetrain.optim import constant, warmup
    >>> lr = constant(0.1) * warmup(4)
    >>> [round(lr(step), 3) for step in (1, 2, 4, 5)]
    [0.025, 0.05, 0.1, 0.1]
    """

    factors: tuple[Function, ...]

    def __call__(self, step: int) -> float:
        """Return the product in a step."""
        product = 1.0
        for factor in self.factors:
            product *= factor(step)
        return product

    def __mul__(self, other: Any) -> Schedule:
        return Schedule(self.factors + as_schedule(other).factors)

    __rmul__ = __mul__

    def __repr__(self) -> str:
        return " * ".join(map(repr, self.factors))

    def to_config(self) -> list[dict[str, Any]]:
        """Return plain values for a manifest.

        Raises
        ------
        ConfigError
            If a factor is a custom function.
        """
        if not all(isinstance(factor, Factor) for factor in self.factors):
            raise ConfigError("a learning rate that is a custom function cannot be saved")
        return [{"name": f.name, **dict(f.numbers)} for f in self.factors if isinstance(f, Factor)]

    @staticmethod
    def from_config(config: Sequence[Mapping[str, Any]]) -> Schedule:
        """Return the schedule that `to_config` described."""
        product = Schedule(())
        for part in config:
            numbers = {key: value for key, value in part.items() if key != "name"}
            if part["name"] not in MAKERS:
                raise ConfigError(f"schedule {part['name']!r} is unknown; known: {list(MAKERS)}")
            product = product * MAKERS[part["name"]](**numbers)
        return product


def as_schedule(value: Any) -> Schedule:
    """Convert a number, a function of the step or a schedule to a schedule."""
    if isinstance(value, Schedule):
        return value
    return Schedule((value,)) if callable(value) else constant(value)


def constant(value: float) -> Schedule:
    """Return the same number in every step."""
    return _make("constant", value=value)


def warmup(steps: int) -> Schedule:
    """Rise linearly to 1, reached in step `steps`; then 1."""
    return _make("warmup", steps=_whole("warmup", "steps", steps))


def step_decay(every: int, factor: float = 0.1) -> Schedule:
    """Multiply by `factor` after every `every` steps."""
    return _make("step_decay", every=_whole("step_decay", "every", every), factor=factor)


def polynomial(steps: int, power: float = 1.0, floor: float = 0.0) -> Schedule:
    """Fall from 1 to `floor` by step `steps`, as ``(1 - step / steps) ** power``."""
    return _make("polynomial", steps=_whole("polynomial", "steps", steps), power=power, floor=floor)


def cosine(steps: int, floor: float = 0.0) -> Schedule:
    """Fall from 1 to `floor` by step `steps`, along half a cosine."""
    return _make("cosine", steps=_whole("cosine", "steps", steps), floor=floor)


def inverse_sqrt(steps: int) -> Schedule:
    """Stay at 1 until step `steps`, then fall as ``sqrt(steps / step)``."""
    return _make("inverse_sqrt", steps=_whole("inverse_sqrt", "steps", steps))


def _remaining(step: int, steps: float) -> float:
    return 1 - min(step, steps) / steps


def _cosine(step: int, steps: float, floor: float) -> float:
    return floor + (1 - floor) * (1 + cos(pi * min(step, steps) / steps)) / 2


# Name in settings and manifests -> the function of the step.
FACTORS: dict[str, Callable[..., float]] = {
    "constant": lambda step, value: value,
    "warmup": lambda step, steps: min(step, steps) / steps,
    "step_decay": lambda step, every, factor: factor ** ((step - 1) // every),
    "polynomial": lambda step, steps, power, floor: (
        floor + (1 - floor) * _remaining(step, steps) ** power
    ),
    "cosine": _cosine,
    "inverse_sqrt": lambda step, steps: sqrt(steps / max(step, steps)),
}
MAKERS: dict[str, Callable[..., Schedule]] = {
    make.__name__: make for make in (constant, warmup, step_decay, polynomial, cosine, inverse_sqrt)
}


def _make(name: str, **numbers: float) -> Schedule:
    for key, value in numbers.items():
        if not is_number(value) or not isfinite(value):
            raise ConfigError(f"schedule {name}: {key} must be a finite number, not {value!r}")
        if value < 0:
            raise ConfigError(f"schedule {name}: {key} must be 0 or more, not {value!r}")
    plain = ((key, v if isinstance(v, int) else float(v)) for key, v in numbers.items())
    return Schedule((Factor(name, tuple(plain)),))


def _whole(name: str, key: str, value: Any) -> int:
    return require_int(f"schedule {name}: {key}", value)
