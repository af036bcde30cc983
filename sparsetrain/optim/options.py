# SPDX-License-Identifier: Apache-2.0
"""Options that every constructor takes beside its own numbers, and the refusal of all others."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, TypedDict

from sparsetrain.errors import ConfigError
from sparsetrain.optim.formula import Formula
from sparsetrain.optim.optimizer import Optimizer
from sparsetrain.optim.param_groups import ParamGroup
from sparsetrain.optim.rule import Mode, Number, Update
from sparsetrain.system.argument_checks import is_number

if TYPE_CHECKING:
    from typing_extensions import Unpack as Unpack
else:
    Unpack = dict  # read by type checkers alone


class Options(TypedDict, total=False):
    """See `Optimizer` for each; `adamw` has no `decoupled`, `ftrl` neither kind of decay."""

    mode: Mode
    max_replayed_steps: int | None
    weight_decay: float
    decoupled: bool
    clip_value: float | None
    clip_norm: float | None
    on_nonfinite: Literal["stop", "skip"]
    update: Update
    groups: Sequence[ParamGroup]


def make(
    formula: Formula,
    hyper: Mapping[str, Number],
    options: Mapping[str, Any],
    without: Sequence[str] = (),
    own: Sequence[str] = (),
    fixed: Mapping[str, Any] | None = None,
) -> Optimizer:
    """An optimizer of a formula and its options.

    Parameters
    ----------
    formula, hyper
        As of `Optimizer`.
    options : mapping
        What the caller gave beside the hyper-parameters.
    without : sequence of str
        Options that this formula does not have.
    own : sequence of str
        Its constructor's arguments that are no hyper-parameters, for the message.
    fixed : mapping, optional
        Options that belong to the formula and cannot be chosen.

    Raises
    ------
    ConfigError
        If there is an option that the formula does not have; names the formula and its options.
    """
    allowed = [name for name in Options.__annotations__ if name not in without]
    for name in options:
        if name not in allowed:
            known = ", ".join([*hyper, *own, *allowed])
            raise ConfigError(f"{formula.name} has no option {name!r}; its options are {known}")
    return Optimizer(formula, hyper, **options, **(fixed or {}))


def require_above_zero(name: str, **numbers: Any) -> None:
    """Refuse a number that the formula divides by when it is 0."""
    for key, value in numbers.items():
        if not (is_number(value) and value > 0):
            raise ConfigError(f"{name}: {key} must be above 0, not {value!r}")


def require_start(name: str, initial: Any) -> float:
    """Return a start as Python's own float; one from which a sum has no root is refused."""
    if not (is_number(initial) and 0 <= initial < float("inf")):
        raise ConfigError(f"{name}: initial must be finite and 0 or more, not {initial!r}")
    return float(initial)


def require_divisor(name: str, eps: Any, initial: Any) -> float:
    """Return a start, unless the first gradient of 0 would be divided by 0."""
    start = require_start(name, initial)
    if not callable(eps) and eps == 0 and initial == 0:
        raise ConfigError(f"{name}: one of eps and initial must be above 0")
    return start


def require_below_one(name: str, **numbers: Any) -> None:
    """Refuse a decay rate with which an average would never forget."""
    for key, value in numbers.items():
        if not callable(value) and not (is_number(value) and 0 <= value < 1):
            raise ConfigError(f"{name}: {key} must be from 0 to below 1, not {value!r}")
