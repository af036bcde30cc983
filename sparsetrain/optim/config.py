# SPDX-License-Identifier: Apache-2.0
"""Conversion of an optimizer to plain values for a manifest, and back.

A custom formula, and a learning rate that is a function, are marked as such: then the optimizer
must be passed when the run is loaded.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from typing import Any

from sparsetrain.errors import ConfigError
from sparsetrain.optim.optimizer import Optimizer
from sparsetrain.optim.options import Options
from sparsetrain.optim.param_groups import ParamGroup
from sparsetrain.optim.schedules import Schedule

OPTIONS = tuple(name for name in Options.__annotations__ if name != "groups")
FUNCTION = "function"


Constructors = Mapping[str, Callable[..., Optimizer]]  # by name of the formula


def to_config(optimizer: Optimizer, known: Constructors) -> dict[str, Any]:
    """Describe an optimizer: name, hyper-parameters, initial slot, options and groups.

    Its formula is `custom` if no constructor of `known` makes it.
    """
    groups = [{**asdict(g), "lr": _described(g.lr)} for g in optimizer.groups]
    return {
        "name": optimizer.formula.name,
        "hyper": {name: _described(value) for name, value in optimizer.hyper.items()},
        "options": {name: getattr(optimizer, name) for name in OPTIONS},
        "groups": groups,
        **_initial(optimizer),
        "custom": not _makes_formula_of(known.get(optimizer.formula.name), optimizer),
    }


def from_config(config: Mapping[str, Any], known: Constructors) -> Optimizer:
    """The optimizer that `to_config` described, by a constructor of `known`.

    Raises
    ------
    ConfigError
        If its formula or learning rate is not of this package.
    """
    if config.get("custom"):
        raise ConfigError(
            f"it was trained by a custom formula named {config['name']!r}: "
            "pass load(..., optimizer=...)"
        )
    if config["name"] not in known:
        raise ConfigError(
            f"it was trained by {config['name']!r}, which this package does not have: "
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


def _initial(optimizer: Optimizer) -> dict[str, float]:
    """The argument `initial` of a constructor: at most one slot of our formulas begins above 0."""
    above = [slot.initial for slot in optimizer.formula.slots if slot.initial]
    return {"initial": float(above[0])} if above else {}


def _makes_formula_of(constructor: Callable[..., Optimizer] | None, optimizer: Optimizer) -> bool:
    if constructor is None:
        return False
    try:
        built = constructor(**optimizer.hyper, **_initial(optimizer))
    except (ConfigError, TypeError):  # it takes other arguments
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
