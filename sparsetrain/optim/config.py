# SPDX-License-Identifier: Apache-2.0
"""An optimizer as plain values for a manifest, and back. Nothing in it is code.

A formula of the user's, whatever its name, and a function as a learning rate are noted as such;
whoever loads the run must pass the optimizer.
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


Constructors = Mapping[str, Callable[..., Optimizer]]  # by the names of their formulas


def to_config(optimizer: Optimizer, known: Constructors) -> dict[str, Any]:
    """Describe an optimizer: name, hyper-parameters, initial slot, options and groups.

    It is `own` if no constructor of `known` makes its formula.
    """
    groups = [{**asdict(g), "lr": _described(g.lr)} for g in optimizer.groups]
    return {
        "name": optimizer.formula.name,
        "hyper": {name: _described(value) for name, value in optimizer.hyper.items()},
        "options": {name: getattr(optimizer, name) for name in OPTIONS},
        "groups": groups,
        **_initial(optimizer),
        "own": not _is_made_by(known.get(optimizer.formula.name), optimizer),
    }


def from_config(config: Mapping[str, Any], known: Constructors) -> Optimizer:
    """The optimizer that `to_config` described, by a constructor of `known`.

    Raises
    ------
    ConfigError
        If its formula or learning rate is not of this package.
    """
    if config.get("own"):
        raise ConfigError(
            f"it was trained by a formula of yours named {config['name']!r}: "
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
    """The argument `initial` of a constructor: of our formulas one slot at most begins above 0."""
    above = [slot.initial for slot in optimizer.formula.slots if slot.initial]
    return {"initial": float(above[0])} if above else {}


def _is_made_by(constructor: Callable[..., Optimizer] | None, optimizer: Optimizer) -> bool:
    if constructor is None:
        return False
    try:
        made = constructor(**optimizer.hyper, **_initial(optimizer))
    except (ConfigError, TypeError):  # it takes other arguments
        return False
    return made.formula == optimizer.formula


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
            "it was trained with a learning rate that is a function of yours: "
            "pass load(..., optimizer=...)"
        )
    return Schedule.from_config(value) if isinstance(value, list) else value
