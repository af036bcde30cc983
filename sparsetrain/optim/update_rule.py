# SPDX-License-Identifier: Apache-2.0
"""`UpdateRule`: formula, hyper-parameters and options of a range of rows, resolved and hashable."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from functools import cached_property
from math import isfinite
from typing import Any, Literal, get_args

from sparsetrain.errors import ConfigError
from sparsetrain.optim.schedules import Function, Schedule
from sparsetrain.system.argument_checks import is_number
from sparsetrain.tables.formula import Formula, KernelSpec
from sparsetrain.tables.replay import FEW

Number = float | Schedule | Callable[[int], float]
Mode = Literal["lazy", "exact", "closed", "dense"]
MODES = get_args(Mode)
CATCH_UP = ("exact", "closed")  # modes in which rows catch up with the steps that they missed
Update = Literal["sparse", "dense"]
UPDATES = get_args(Update)


@dataclass(frozen=True, kw_only=True)
class RowOptions:
    """Options of an optimizer that may differ between rows; `Optimizer` describes them."""

    mode: Mode = "lazy"
    max_replayed_steps: int | None = None
    weight_decay: float = 0.0
    decoupled: bool = False
    clip_value: float | None = None
    update: Update | None = None

    def row_options(self) -> dict[str, Any]:
        """Return the options by name."""
        return {option.name: getattr(self, option.name) for option in fields(RowOptions)}


@dataclass(frozen=True)
class UpdateRule(RowOptions):
    """A formula with hyper-parameters and options; if `update` is None, `with_update` decides it.

    Parameters
    ----------
    formula : Formula
        Arithmetic of a step.
    hyper : tuple of (str, float or function of the step)
        The formula's hyper-parameters.
    scaled : bool
        Whether each step multiplies the gradient by a factor.
    """

    formula: Formula
    hyper: tuple[tuple[str, float | Function], ...]
    scaled: bool = False

    def __post_init__(self) -> None:
        _check_options(self)

    def __hash__(self) -> int:
        return self._hash

    @cached_property
    def _hash(self) -> int:
        """The hash, cached because a step looks rules up many times."""
        return hash(tuple(getattr(self, item.name) for item in fields(self)))

    @cached_property
    def spec(self) -> KernelSpec:
        """What the kernels are generated from: formula, scalar names, decay, scaling, clipping."""
        decay: Literal["coupled", "decoupled"] | None = None
        if self.weight_decay:
            decay = "decoupled" if self.decoupled else "coupled"
        extra = {"coupled": ("weight_decay",), "decoupled": ("keep",)}.get(decay or "", ())
        names = (*_step_names(self.formula, dict(self.hyper)), *extra)
        clips, closed = self.clip_value is not None, self.mode == "closed"
        lags = self.has_last and not self.dense
        return KernelSpec(self.formula, names, decay, self.scaled, clips, closed, lags)

    @property
    def has_last(self) -> bool:
        """Whether rows have the slot `last`: in exact or closed mode, if a 0 gradient changes rows.

        Rows that are updated densely have it too, so that a checkpoint does not depend on `update`.
        """
        changes = bool(self.weight_decay) or self.formula.noop_on_zero_grad != "always"
        return self.mode in CATCH_UP and changes

    @property
    def dense(self) -> bool:
        """Whether every row is updated in every step."""
        return "dense" in (self.mode, self.update)

    def with_update(self, small: bool) -> UpdateRule:
        """Return the rule with `update` decided, by whether the table is `small`."""
        if self.update is not None or self.mode == "dense":
            return self
        dense = small and self.spec.lags and self.max_replayed_steps is None
        return replace(self, update="dense" if dense else "sparse")

    @property
    def path(self) -> str:
        """Description of how the rows of a table are updated."""
        if self.mode == "dense":
            return "dense: every row in every step, as requested"
        if self.dense:
            return f"every row; {self.mode} means the same here"
        if self.spec.noop_on_zero_grad == "always":
            return f"touched rows; {self.mode} is exact here: a gradient of 0 changes nothing"
        if self.mode == "lazy":
            kept = "decay and slots" if self.weight_decay else "slots"
            return f"touched rows, lazy: the {kept} of other rows do not change"
        if self.mode == "closed":
            few = self.max_replayed_steps or FEW
            return (
                f"touched rows, closed: more than {few} missed steps are one product, within a "
                "float32 rounding of their float64 replay"
            )
        exact = "touched rows, exact: others are caught up before they are read"
        if self.max_replayed_steps is None:
            return exact
        return f"{exact}, at most {self.max_replayed_steps} steps a row"

    def numbers(self, step: int, lr_scale: float = 1.0) -> tuple[float, ...]:
        """Return the values of `spec.numbers` in a step; `lr_scale` multiplies the learning rate.

        Raises
        ------
        ConfigError
            If a function of the step does not return a finite number >= 0.
        """
        changes = self.changes or lr_scale != 1
        return self._numbers(step, lr_scale) if changes else self._always

    def scalars(self, numbers: tuple[float, ...], factor: float) -> tuple[float, ...]:
        """Return the kernels' scalars: a step's numbers, then the gradient's scale and limit."""
        scale = (factor,) if self.scaled else ()
        clip = () if self.clip_value is None else (self.clip_value,)
        return (*numbers, *scale, *clip)

    @cached_property
    def changes(self) -> bool:
        """Whether numbers depend on the step."""
        return self.formula.per_step is not None or any(callable(v) for _, v in self.hyper)

    @cached_property
    def _always(self) -> tuple[float, ...]:
        """The numbers of all steps, if they do not depend on the step."""
        return self._numbers(1)

    def _numbers(self, step: int, lr_scale: float = 1.0) -> tuple[float, ...]:
        hyper = {name: value_at(value, step) for name, value in self.hyper}
        if "lr" in hyper:
            hyper["lr"] *= lr_scale
        for name, value in hyper.items():
            if not (isfinite(value) and value >= 0):
                raise ConfigError(f"{self.formula.name}: {name} is {value} in step {step}")
        more = self.formula.per_step(hyper, step) if self.formula.per_step else {}
        extra = (self.weight_decay,) if self.weight_decay else ()
        if self.weight_decay and self.decoupled:
            extra = (1 - hyper["lr"] * self.weight_decay,)
        return (*hyper.values(), *map(float, more.values()), *extra)


def as_hyper_parameter(formula: Formula, name: str, value: Any) -> float | Function:
    """Return a hyper-parameter as a float, or as a function of the step.

    Raises
    ------
    ConfigError
        If `value` is neither callable nor a finite number >= 0.
    """
    if callable(value):
        return value
    number = float(value) if is_number(value) else -1.0
    if not 0 <= number < float("inf"):
        raise ConfigError(f"{formula.name}: {name} must be finite and 0 or more, not {value!r}")
    return number


def value_at(value: float | Function, step: int) -> float:
    """Return the value of a hyper-parameter in a step.

    Raises
    ------
    ConfigError
        If a function of the step raises, or does not return a number.
    """
    if not callable(value):
        return value
    try:
        return float(value(step))
    except Exception as error:  # whatever the user's function raises
        raise ConfigError(f"a function of the step fails in step {step}: {error}") from error


def _check_options(rule: UpdateRule) -> None:
    """Refuse options that the formula lacks or that would have no effect."""
    name = rule.formula.name
    if callable(rule.weight_decay):
        raise ConfigError(f"{name}: weight_decay must be a number, not a function of the step")
    as_hyper_parameter(rule.formula, "weight_decay", rule.weight_decay)
    if not isinstance(rule.decoupled, bool):
        raise ConfigError(f"{name}: decoupled must be True or False, not {rule.decoupled!r}")
    if rule.mode not in MODES:
        raise ConfigError(f"{name}: mode must be one of {', '.join(MODES)}, not {rule.mode!r}")
    if rule.mode == "lazy" and "average" in dict(rule.hyper):
        raise ConfigError(
            f"{name}: average needs mode 'exact' or 'dense': lazy rows would keep an old average"
        )
    if rule.weight_decay and not rule.formula.decays:
        raise ConfigError(f"{name} has no weight_decay")
    if rule.weight_decay and rule.decoupled and "lr" not in dict(rule.hyper):
        raise ConfigError(f"{name}: decoupled weight_decay needs a hyper-parameter 'lr'")
    check_limit(name, "clip_value", rule.clip_value)
    if rule.update not in (None, *UPDATES):
        raise ConfigError(f"{name}: update must be {' or '.join(UPDATES)}, not {rule.update!r}")
    if rule.update == "sparse" and rule.mode == "dense":
        raise ConfigError(
            f"{name}: mode 'dense' updates every row: for update 'sparse' use mode 'exact', "
            "which gives the same bits"
        )
    if rule.update == "dense" and rule.mode == "lazy" and rule.spec.noop_on_zero_grad != "always":
        raise ConfigError(
            f"{name}: mode 'lazy' skips rows that update 'dense' would change: use mode "
            "'dense' or 'exact'"
        )
    if rule.max_replayed_steps is not None:
        _check_max_replayed_steps(rule)
    if rule.mode == "closed" and not rule.spec.is_linear(rule.numbers(1)):
        coupled = rule.weight_decay and not rule.decoupled
        raise ConfigError(
            f"{name}{' with coupled weight_decay' if coupled else ''}: mode 'closed' needs a step "
            "that is linear in weight and slots without a gradient, such as sgd's and momentum's: "
            "use mode 'exact'"
        )


def check_limit(formula: str, option: str, value: Any) -> None:
    """Refuse a limit that is neither None nor a finite number above 0.

    Raises
    ------
    ConfigError
        If `value` is such a limit; the message names the formula, the option and the value.
    """
    if value is not None and not (is_number(value) and 0 < value < float("inf")):
        raise ConfigError(f"{formula}: {option} must be above 0, not {value!r}")


def _check_max_replayed_steps(rule: UpdateRule) -> None:
    name, limit = rule.formula.name, rule.max_replayed_steps
    if isinstance(limit, bool) or not isinstance(limit, int) or limit < 1:
        raise ConfigError(
            f"{name}: max_replayed_steps must be a whole number from 1, not {limit!r}"
        )
    if rule.mode not in CATCH_UP:
        raise ConfigError(
            f"{name}: max_replayed_steps needs mode 'exact', but the mode is {rule.mode!r}"
        )
    if rule.update == "dense":
        raise ConfigError(
            f"{name}: max_replayed_steps has no effect with update 'dense': remove one of them"
        )
    if rule.mode == "closed":
        return
    if rule.weight_decay and not rule.decoupled:
        raise ConfigError(
            f"{name}: max_replayed_steps does not work with coupled weight_decay: set "
            "decoupled=True or remove the limit"
        )
    if rule.formula.noop_on_zero_grad != "always" and not rule.formula.slot_decay:
        raise ConfigError(f"{name}: max_replayed_steps needs a formula with slot_decay")


def _step_names(formula: Formula, hyper: Mapping[str, float | Function]) -> tuple[str, ...]:
    if formula.per_step is None:
        return tuple(hyper)
    first = {name: value_at(value, 1) for name, value in hyper.items()}
    return (*hyper, *formula.per_step(first, 1))
