# SPDX-License-Identifier: Apache-2.0
"""Loss scaling, which keeps half precision from rounding small gradients to zero.

The reverse pass starts from the scale instead of 1. The optimizer divides by the scale in the
factor by which clipping multiplies gradients, so scaling needs no extra pass over the gradients,
and a new scale needs no recompilation. Scaling by a power of two does not change the final
gradients, unless a gradient underflows or overflows.

A dynamic scale searches for the largest scale without overflow (Micikevicius et al. 2018,
https://arxiv.org/abs/1710.03740). After a non-finite gradient the step is skipped and the scale
halved; after a number of finite steps it is doubled. At the smallest scale, a non-finite gradient
is an ordinary error.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from types import MappingProxyType
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np

from sparsetrain.ad.gradient import LOSS_SCALE
from sparsetrain.compiler.precision.policy import Policy
from sparsetrain.errors import ConfigError
from sparsetrain.system.argument_checks import is_number, require_int

MOST = 2.0**24  # a larger scale does not help: at this scale no gradient rounds to zero


@dataclass(frozen=True)
class LossScale:
    """The rule by which the loss scale changes; `Scaling` holds its state during a run.

    Parameters
    ----------
    initial : float
        The first scale.
    every : int, optional
        Number of steps without overflow after which the scale is doubled; None for a constant
        scale.
    least, most : float
        Bounds of a scale that is not constant.

    Raises
    ------
    ConfigError
        If a number is not positive and in float32's range, or `initial` is out of bounds.

    Examples
    --------
    >>> import sparsetrain as st
    >>> careful = st.precision.LossScale(initial=1024.0, every=500)
    >>> static = st.precision.LossScale(initial=1024.0, every=None)
    """

    initial: float = 65536.0
    every: int | None = 2000
    least: float = 1.0
    most: float = MOST

    def __post_init__(self) -> None:
        for name in ("initial", "least", "most"):
            value = getattr(self, name)
            if not _is_scale(value):
                raise ConfigError(f"loss scale: {name} must be from 1e-37 to 1e37, not {value!r}")
            object.__setattr__(self, name, float(value))
        if self.every is None:
            return
        object.__setattr__(self, "every", require_int("loss scale: every", self.every))
        if not self.least <= self.initial <= self.most:
            raise ConfigError(
                f"loss scale: initial is {self.initial:g}; it must be from {self.least:g} to "
                f"{self.most:g}"
            )

    def to_dict(self) -> dict[str, Any]:
        """Return the arguments, as plain values."""
        return asdict(self)


# Values that callers may pass; None means the precision's default.
Given: TypeAlias = "LossScale | float | Literal['dynamic'] | None"


class Scale(NamedTuple):
    """Scale of the gradients of one step."""

    factor: float = 1.0  # multiplies the gradients, if an update rule is `scaled`
    loss_scale: float = 1.0  # already multiplied into the gradients; `factor` divides by it
    may_overflow: bool = False  # the scale may have made a gradient infinite
    norm: float | None = None  # global norm of the unscaled gradients, if it is known

    @classmethod
    def undoing(cls, loss_scale: float, may_overflow: bool) -> Scale:
        """Return the `Scale` that divides by `loss_scale`, which must be positive and finite."""
        if not (is_number(loss_scale) and 0 < loss_scale < float("inf")):
            raise ConfigError(f"optimizer: scale must be finite and above 0, not {loss_scale!r}")
        return cls(1 / loss_scale, loss_scale, may_overflow)

    def clipped(self, norm: float, limit: float) -> Scale:
        """Limit the gradients' norm to `limit`; `norm` is the norm of the scaled gradients."""
        norm = norm / self.loss_scale
        return self._replace(factor=self.factor * min(1.0, limit / (norm + 1e-6)), norm=norm)

    def inputs(self, share: float = 1.0) -> dict[str, Any]:
        """Return the input `loss_scale` of a scaled program that computes a share of the loss."""
        return {LOSS_SCALE: np.float32(self.loss_scale * share)}

    def explain(self, problem: str, step: int) -> str:
        """Return the error message about a skipped step."""
        is_scaled = self.loss_scale != 1
        scaled = f", with the loss scaled by {self.loss_scale:,.10g}" if is_scaled else ""
        first = "the loss scale, " if is_scaled else ""
        return (
            f"{problem} in step {step}{scaled}: nothing was updated; lower {first}the learning "
            "rate or look at this batch's dense features"
        )


NO_SCALE = Scale()


class Unscaled(NamedTuple):
    """No loss scaling; `inputs` and `scale` are constants because every step reads them."""

    inputs: Mapping[str, Any] = MappingProxyType({})
    scale: Scale = NO_SCALE


class Scaling:
    """The current loss scale of a run, and the counts that decide when it changes.

    Parameters
    ----------
    rule : LossScale

    Attributes
    ----------
    value : float
        The scale of the next step's loss.
    good : int
        Steps since the scale changed or a gradient overflowed.
    overflows : int
        Steps skipped because a scaled gradient overflowed.
    """

    def __init__(self, rule: LossScale) -> None:
        self.rule = rule
        self.value, self.good, self.overflows = rule.initial, 0, 0

    @property
    def can_fall(self) -> bool:
        """Whether the scale is dynamic and above its lower bound, so that it can be halved."""
        return self.rule.every is not None and self.value > self.rule.least

    @property
    def scale(self) -> Scale:
        """The scale of the next step's gradients."""
        return Scale.undoing(float(np.float32(self.value)), self.can_fall)

    @property
    def inputs(self) -> Mapping[str, Any]:
        """The additional inputs of the next step's gradient program."""
        return self.scale.inputs()

    def count_step(self, overflowed: bool, taken: bool) -> None:
        """Count a step, unless it was skipped for a reason other than overflow."""
        if overflowed:
            self.value, self.good = max(self.value / 2, self.rule.least), 0
            self.overflows += 1
        elif taken and self.rule.every is not None:
            self.good += 1
            if self.good >= self.rule.every:
                self.value, self.good = min(2 * self.value, self.rule.most), 0

    def to_dict(self) -> dict[str, Any]:
        """Return the rule and the counts, as plain values."""
        counts = {"value": self.value, "good": self.good, "overflows": self.overflows}
        return {**self.rule.to_dict(), **counts}

    def restore(self, saved: Mapping[str, Any]) -> None:
        """Restore the counts from the result of `to_dict`, if it has the same rule."""
        other = Scaling.from_dict(saved)
        if other.rule == self.rule:
            self.value, self.good, self.overflows = other.value, other.good, other.overflows

    @classmethod
    def from_dict(cls, saved: Mapping[str, Any]) -> Scaling:
        """Create a `Scaling` from the result of `to_dict`."""
        counts = {name: saved[name] for name in ("value", "good", "overflows")}
        rule = {name: value for name, value in saved.items() if name not in counts}
        scaling = cls(LossScale(**rule))
        if not _is_scale(counts["value"]):
            raise ConfigError(
                f"loss scale: value must be from 1e-37 to 1e37, not {counts['value']!r}"
            )
        scaling.value = float(counts["value"])
        scaling.good, scaling.overflows = int(counts["good"]), int(counts["overflows"])
        return scaling


def scaling_for(given: Given, policy: Policy | None) -> Scaling | None:
    """Return the `Scaling` for the start of a run, or None if the loss is not scaled.

    Parameters
    ----------
    given : LossScale, float, "dynamic" or None
        A number is a constant scale. None means "dynamic" for float16, because gradients can be far
        smaller than its smallest positive number, and otherwise no scaling.
    policy : Policy, optional
        The precision's policy; None for float32.

    Raises
    ------
    ConfigError
        If `given` is none of these.
    """
    if given is None:
        return Scaling(LossScale()) if policy is not None and policy.dtype == "float16" else None
    if given == "dynamic":
        return Scaling(LossScale())
    if isinstance(given, LossScale):
        return Scaling(given)
    if not _is_scale(given):
        raise ConfigError(
            f"loss_scale must be from 1e-37 to 1e37, 'dynamic' or a LossScale, not {given!r}"
        )
    return Scaling(LossScale(initial=float(given), every=None))


def _is_scale(value: Any) -> bool:
    return is_number(value) and bool(1e-37 <= value <= 1e37)
