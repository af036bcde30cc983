# SPDX-License-Identifier: Apache-2.0
"""Settings of the section `optimizer`, and which of them each formula has.

They name a formula, numbers and enumerated schedules; what is built from them is the caller's
business. Tests compare the tables here with the constructors.
"""

from typing import Annotated, Any, Literal

from pydantic import Field

from sparsetrain.cli.settings.section import Finite, Positive, Section

Name = Literal[
    "sgd", "momentum", "nesterov", "adagrad", "rowwise_adagrad", "rmsprop", "adam", "adamw", "ftrl"
]
Mode = Literal["lazy", "exact", "dense"]
Update = Literal["sparse", "dense"]
NotNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Rate = Annotated[float, Field(ge=0, lt=1, allow_inf_nan=False)]
Count = Annotated[int, Field(ge=1)]


class GroupSettings(Section):
    """What differs for the parameters and tables whose names match.

    Attributes
    ----------
    match : str
        A name such as `embeddings.C1.weight`, with `*` and `?`.
    lr, scale : float or None
        Another learning rate, constant; a factor for it.
    weight_decay, mode, max_replayed_steps, update : optional
        In place of the section's.
    """

    match: str
    lr: NotNegative | None = None
    scale: NotNegative | None = None
    weight_decay: NotNegative | None = None
    mode: Mode | None = None
    max_replayed_steps: Count | None = None
    update: Update | None = None


class OptimizerSettings(Section):
    """The update formula, its numbers, and what is done before it. None: the formula's default.

    Attributes
    ----------
    name : str
        Formula: "sgd", "momentum", "nesterov", "adagrad", "rowwise_adagrad", "rmsprop", "adam",
        "adamw" or "ftrl".
    lr : float
        Learning rate; what the schedule's factors multiply.
    eps, initial, momentum, alpha, beta1, beta2, beta, l1, l2 : float or None
        Numbers of a formula; docs/optimizers.md says which has which.
    mode : {"lazy", "exact", "dense"}
        What happens to rows that a batch does not name.
    max_replayed_steps : int or None
        Most steps replayed for a row in exact mode.
    weight_decay, decoupled
        Decay, added to the gradient or taken off the weight.
    clip_value, clip_norm : float or None
        Limits of a gradient's elements and of the global norm.
    on_nonfinite : {"stop", "skip"}
        What a gradient with NaN or infinity does.
    update : {"sparse", "dense"} or None
        Whether touched rows or every row is updated, where both give the same bits.
    schedule : {"constant", "step_decay", "polynomial", "cosine", "inverse_sqrt"}
        How the learning rate follows the step.
    schedule_steps : int or None
        Steps of the schedule.
    warmup : int or None
        Steps of a linear rise at the beginning.
    factor, power, floor : float or None
        Numbers of a schedule.
    accumulate : int
        Parts in which a batch is computed before its one step.
    groups : list of tables
        What differs for some parameters or tables.
    """

    name: Name = "adagrad"
    lr: Positive = 0.02
    eps: Positive | None = None
    initial: NotNegative | None = None
    momentum: Rate | None = None
    alpha: Rate | None = None
    beta1: Rate | None = None
    beta2: Rate | None = None
    beta: NotNegative | None = None
    l1: NotNegative | None = None
    l2: NotNegative | None = None
    mode: Mode | None = None
    max_replayed_steps: Count | None = None
    weight_decay: NotNegative | None = None
    decoupled: bool | None = None
    clip_value: Positive | None = None
    clip_norm: Positive | None = None
    on_nonfinite: Literal["stop", "skip"] | None = None
    update: Update | None = None
    schedule: Literal["constant", "step_decay", "polynomial", "cosine", "inverse_sqrt"] = "constant"
    schedule_steps: Count | None = None
    warmup: Count | None = None
    factor: NotNegative | None = None
    power: NotNegative | None = None
    floor: Finite | None = None
    accumulate: Count = 1
    groups: list[GroupSettings] = []

    def arguments(self) -> dict[str, Any]:
        """Return the numbers and options that were set, for the formula's constructor."""
        return self.model_dump(include={*NUMBERS, *OPTIONS}, exclude_none=True)

    def group_arguments(self) -> list[dict[str, Any]]:
        """Return the keyword arguments of each group."""
        return [group.model_dump(exclude_none=True) for group in self.groups]

    def schedule_config(self) -> list[dict[str, Any]]:
        """Return the factors of the learning rate, by name; one factor if it is constant."""
        factors: list[dict[str, Any]] = [{"name": "constant", "value": self.lr}]
        if self.warmup is not None:
            factors.append({"name": "warmup", "steps": self.warmup})
        if self.schedule != "constant":
            key = "every" if self.schedule == "step_decay" else "steps"
            numbers = self.model_dump(include=set(SHAPES), exclude_none=True)
            factors.append({"name": self.schedule, key: self.schedule_steps, **numbers})
        return factors

    def problems(self) -> list[tuple[str, str]]:
        """Return the settings that would be ignored or are missing, each with what is wrong."""
        allowed = options_of(self.name)
        listed = ", ".join(("lr", *allowed))
        wrong = [
            (key, f"{self.name} has no option '{key}'; its options are {listed}")
            for key in self.arguments()
            if key not in allowed and key != "lr"
        ]
        used = SCHEDULES[self.schedule]
        for key in ("schedule_steps", *SHAPES):
            if getattr(self, key) is not None and key not in used:
                have = ", ".join(used) or "none of its own"
                text = f"schedule '{self.schedule}' has no '{key}'; its settings are {have}"
                wrong.append((key, text))
        if self.schedule != "constant" and self.schedule_steps is None:
            wrong.append(("schedule", f"schedule '{self.schedule}' needs optimizer.schedule_steps"))
        return wrong


NUMBERS = ("lr", "eps", "initial", "momentum", "alpha", "beta1", "beta2", "beta", "l1", "l2")
OPTIONS = (
    *("mode", "max_replayed_steps", "weight_decay", "decoupled"),
    *("clip_value", "clip_norm", "on_nonfinite", "update"),
)
SHAPES = ("factor", "power", "floor")

# Which numbers each formula has beside `lr`.
FORMULA_OPTIONS: dict[str, tuple[str, ...]] = {
    "sgd": (),
    "momentum": ("momentum",),
    "nesterov": ("momentum",),
    "adagrad": ("eps", "initial"),
    "rowwise_adagrad": ("eps", "initial"),
    "rmsprop": ("alpha", "eps"),
    "adam": ("beta1", "beta2", "eps"),
    "adamw": ("beta1", "beta2", "eps"),
    "ftrl": ("l1", "l2", "beta", "initial"),
}
# Which of the options that all have one has not.
WITHOUT = {"adamw": ("decoupled",), "ftrl": ("weight_decay", "decoupled")}
# Which settings each schedule has.
SCHEDULES: dict[str, tuple[str, ...]] = {
    "constant": (),
    "step_decay": ("schedule_steps", "factor"),
    "polynomial": ("schedule_steps", "power", "floor"),
    "cosine": ("schedule_steps", "floor"),
    "inverse_sqrt": ("schedule_steps",),
}


def options_of(name: str) -> tuple[str, ...]:
    """Everything that can be set for a formula beside `lr`."""
    common = tuple(key for key in OPTIONS if key not in WITHOUT.get(name, ()))
    return FORMULA_OPTIONS[name] + common
