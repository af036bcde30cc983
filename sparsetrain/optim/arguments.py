# SPDX-License-Identifier: Apache-2.0
"""Options shared by all constructors, checks of arguments, and conversion to plain values.

A saved run only records that its formula or learning rate is custom: the caller must then pass the
optimizer when loading the run.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any, Literal, TypedDict, get_args, get_type_hints

from sparsetrain.errors import ConfigError, meant
from sparsetrain.optim.average import Average
from sparsetrain.optim.optimizer import Optimizer
from sparsetrain.optim.param_groups import ParamGroup
from sparsetrain.optim.schedules import Schedule
from sparsetrain.optim.update_rule import Mode, Number, Update
from sparsetrain.system.argument_checks import is_number
from sparsetrain.tables.formula import Formula

if TYPE_CHECKING:
    from typing_extensions import Unpack as Unpack
else:
    Unpack = dict  # only type checkers need the real one


class WithoutDecay(TypedDict, total=False):
    """Options of formulas that have their own weight decay; see `Optimizer`."""

    mode: Mode
    max_replayed_steps: int | None
    clip_value: float | None
    clip_norm: float | None
    on_nonfinite: Literal["stop", "skip"]
    update: Update
    average: float | Average | None
    groups: Sequence[ParamGroup]


class Options(WithoutDecay, total=False):
    """Options of formulas without a weight decay of their own; see `Optimizer`."""

    weight_decay: float
    decoupled: bool


def optimizer_of(given: Any, lr: float = 0.02, **options: Any) -> Optimizer:
    """Return an `Optimizer` unchanged, or make one from a name in `OPTIMIZERS`.

    Raises
    ------
    ConfigError
        If `given` is neither an `Optimizer` nor such a name.
    """
    known = _constructors()
    if isinstance(given, str) and given in known:
        return known[given](lr=lr, **options)
    if not isinstance(given, Optimizer):
        raise ConfigError(
            f"optimizer is {given!r:.60}; give one of {', '.join(known)}, or a value such as "
            f"sparsetrain.optim.adagrad(0.02){meant(str(given), [*known])}"
        )
    return given


def options_of(name: str) -> list[str]:
    """Return the names of a constructor's arguments, in the order of its signature."""
    hints = get_type_hints(_constructors()[name])
    shared = get_args(hints.pop("options"))[0].__annotations__
    return [argument for argument in (*hints, *shared) if argument != "return"]


def _constructors() -> Mapping[str, Callable[..., Optimizer]]:
    from sparsetrain.optim import OPTIMIZERS  # its formulas import this module

    return OPTIMIZERS


def make_optimizer(
    formula: Formula,
    hyper: Mapping[str, Number],
    options: Mapping[str, Any],
    shared: type = Options,
    fixed: Mapping[str, Any] | None = None,
) -> Optimizer:
    """Build the optimizer of a formula.

    Parameters
    ----------
    formula, hyper
        As in `Optimizer`.
    options : mapping
        Keyword arguments of the constructor that are not the formula's.
    shared : type
        The options that the constructor accepts.
    fixed : mapping, optional
        Options that the formula sets.

    Raises
    ------
    ConfigError
        If the formula does not have an option; the message names the formula and its options.
    """
    for name in options:
        if name not in shared.__annotations__:
            known = ", ".join(options_of(formula.name))
            raise ConfigError(
                f"{formula.name} has no option {name!r}; its options are {known}"
                f"{meant(name, options_of(formula.name))}"
            )
    return Optimizer(formula, hyper, **options, **(fixed or {}))


def require_above_zero(name: str, **numbers: Any) -> None:
    """Raise if a number is not above 0."""
    for key, value in numbers.items():
        if not (is_number(value) and value > 0):
            raise ConfigError(f"{name}: {key} must be above 0, not {value!r}")


def require_initial(name: str, initial: Any) -> float:
    """Return the initial value of an accumulator as a float, if it is finite and not negative."""
    if not (is_number(initial) and 0 <= initial < float("inf")):
        raise ConfigError(f"{name}: initial must be finite and 0 or more, not {initial!r}")
    return float(initial)


def require_initial_or_eps(name: str, eps: Any, initial: Any) -> float:
    """Return the initial value of an accumulator; raise if a first gradient of 0 gives 0 / 0."""
    start = require_initial(name, initial)
    if not callable(eps) and eps == 0 and initial == 0:
        raise ConfigError(f"{name}: one of eps and initial must be above 0")
    return start


def require_below_one(name: str, **numbers: Any) -> None:
    """Refuse a decay rate outside [0, 1)."""
    for key, value in numbers.items():
        if not callable(value) and not (is_number(value) and 0 <= value < 1):
            raise ConfigError(f"{name}: {key} must be from 0 to below 1, not {value!r}")


OPTIONS = tuple(name for name in Options.__annotations__ if name != "groups")
FUNCTION = "function"


def to_config(optimizer: Optimizer) -> dict[str, Any]:
    """Describe an optimizer: name, hyper-parameters, initial slot, options and groups.

    `custom` marks a formula that no constructor of the package makes.
    """
    groups = [{**asdict(g), "lr": _described(g.lr)} for g in optimizer.groups]
    return {
        "name": optimizer.formula.name,
        "hyper": {name: _described(value) for name, value in optimizer.hyper.items()},
        "options": {name: getattr(optimizer, name) for name in OPTIONS},
        "groups": groups,
        **_initial(optimizer),
        "custom": not _makes_formula_of(_constructors().get(optimizer.formula.name), optimizer),
    }


def from_config(config: Mapping[str, Any]) -> Optimizer:
    """Make the optimizer that `to_config` described, by a constructor of the package.

    Raises
    ------
    ConfigError
        If its formula or learning rate is a custom one.
    """
    if config.get("custom"):
        raise ConfigError(
            f"it was trained with a custom formula named {config['name']!r}: "
            "pass load(..., optimizer=...)"
        )
    known = _constructors()
    if config["name"] not in known:
        raise ConfigError(
            f"it was trained with {config['name']!r}, which this package does not have: "
            "pass load(..., optimizer=...)"
        )
    hyper = {name: _number(value) for name, value in config["hyper"].items()}
    options = config["options"]
    unknown = sorted(set(options) - set(OPTIONS))
    if unknown:
        raise ConfigError(f"optimizer option {unknown[0]!r} is unknown; known: {list(OPTIONS)}")
    groups = tuple(ParamGroup(**{**g, "lr": _number(g["lr"])}) for g in config.get("groups", ()))
    initial = {"initial": config["initial"]} if "initial" in config else {}
    return replace(known[config["name"]](**hyper, **initial), **options, groups=groups)


def is_known(config: Mapping[str, Any]) -> bool:
    """Return whether `from_config` can make an optimizer from a description."""
    try:
        from_config(config)
    except ConfigError:
        return False
    return True


def _initial(optimizer: Optimizer) -> dict[str, float]:
    """Return the constructor's argument `initial`; at most one slot starts above 0."""
    above = [slot.initial for slot in optimizer.formula.slots if slot.initial]
    return {"initial": float(above[0])} if above else {}


def _makes_formula_of(constructor: Callable[..., Optimizer] | None, optimizer: Optimizer) -> bool:
    if constructor is None:
        return False
    try:
        built = constructor(**optimizer.hyper, **_initial(optimizer))
    except (ConfigError, TypeError):  # the constructor has different arguments
        return False
    return built.formula == optimizer.formula


def _described(value: Any) -> Any:
    if isinstance(value, Schedule):
        try:
            return value.to_config()
        except ConfigError:
            return FUNCTION
    return FUNCTION if callable(value) else None if value is None else float(value)


def _number(value: Any) -> Any:
    if value == FUNCTION:
        raise ConfigError(
            "it was trained with a learning rate that is a custom function: "
            "pass load(..., optimizer=...)"
        )
    return Schedule.from_config(value) if isinstance(value, list) else value
