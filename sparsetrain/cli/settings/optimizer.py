# SPDX-License-Identifier: Apache-2.0
"""Section `optimizer` of the settings.

Values are names, numbers and schedules by name; the caller builds the optimizer. The options of a
formula are the arguments of its constructor.
"""

from typing import Any, Literal

from sparsetrain.cli.settings.fields import (
    Count,
    Finite,
    NotNegative,
    Positive,
    Rate,
    Section,
    setting,
)
from sparsetrain.errors import meant

# Settings of each schedule.
SCHEDULES: dict[str, tuple[str, ...]] = {
    "constant": (),
    "step_decay": ("schedule_steps", "factor"),
    "polynomial": ("schedule_steps", "power", "floor"),
    "cosine": ("schedule_steps", "floor"),
    "inverse_sqrt": ("schedule_steps",),
}
SHAPES = ("factor", "power", "floor")

ScheduleName: Any = Literal[tuple(SCHEDULES)]
Mode = Literal["lazy", "exact", "closed", "dense"]
Update = Literal["sparse", "dense"]


class GroupSettings(Section):
    """Options that replace the section's for parameters and tables with matching names."""

    match: str  # such as `embeddings.C1.weight`, with `*` and `?`
    lr: NotNegative | None = None  # constant
    scale: NotNegative | None = None  # factor of the learning rate
    weight_decay: NotNegative | None = None
    mode: Mode | None = None
    max_replayed_steps: Count | None = None
    update: Update | None = None


class OptimizerSettings(Section):
    """The update formula, its options and schedule; None means the formula's default."""

    name: str = setting(
        "adagrad", "Update formula, such as adagrad, adam or sgd.", flag="--optimizer"
    )
    lr: Positive = setting(0.02, "Learning rate, which a schedule multiplies.", flag="--lr")
    eps: Positive | None = setting(None, "Added to the denominator.")
    initial: NotNegative | None = setting(None, "Initial value of the accumulator.")
    momentum: Rate | None = setting(None, "Momentum.")
    alpha: Rate | None = setting(None, "Decay of RMSprop's average.")
    beta1: Rate | None = setting(None, "Decay of Adam's first moment.")
    beta2: Rate | None = setting(None, "Decay of Adam's second moment.")
    beta: NotNegative | None = setting(None, "FTRL's beta.")
    l1: NotNegative | None = setting(None, "FTRL's L1 penalty.")
    l2: NotNegative | None = setting(None, "FTRL's L2 penalty.")
    mode: Mode | None = setting(None, "Treatment of rows that a batch does not touch.")
    max_replayed_steps: Count | None = setting(
        None, "Most missed steps replayed for a row in exact mode."
    )
    weight_decay: NotNegative | None = setting(None, "Weight decay.")
    decoupled: bool | None = setting(
        None, "Whether decay is taken off the weight, not added to the gradient."
    )
    clip_value: Positive | None = setting(None, "Limit of each element of a gradient.")
    clip_norm: Positive | None = setting(None, "Limit of the gradients' global norm.")
    on_nonfinite: Literal["stop", "skip"] | None = setting(
        None, "Reaction to a gradient with NaN or infinity."
    )
    update: Update | None = setting(
        None, "Whether touched rows or all rows are updated, where both give the same bits."
    )
    average: Rate | None = setting(
        None, "Decay of an exponential average of all weights; the model scores with it."
    )
    schedule: ScheduleName = setting("constant", "Schedule of the learning rate.")
    schedule_steps: Count | None = setting(None, "Steps of the schedule.")
    warmup: Count | None = setting(None, "Steps of linear warm-up.")
    factor: NotNegative | None = setting(None, "Factor of step_decay.")
    power: NotNegative | None = setting(None, "Power of polynomial.")
    floor: Finite | None = setting(None, "Final factor of polynomial and cosine.")
    accumulate: Count = setting(
        1, "Number of parts of a batch whose gradients are summed for its one step."
    )
    groups: list[GroupSettings] = setting([], "Options of some parameters or tables, by name.")

    def arguments(self) -> dict[str, Any]:
        """Return the options with a value, for the formula's constructor."""
        others = {"name", "groups", "accumulate", "schedule", "schedule_steps", "warmup", *SHAPES}
        return self.model_dump(exclude=others, exclude_none=True)

    def group_arguments(self) -> list[dict[str, Any]]:
        """Return the keyword arguments of each group."""
        return [group.model_dump(exclude_none=True) for group in self.groups]

    def schedule_config(self) -> list[dict[str, Any]]:
        """Return the factors that multiply to the learning rate; only one if it is constant."""
        factors: list[dict[str, Any]] = [{"name": "constant", "value": self.lr}]
        if self.warmup is not None:
            factors.append({"name": "warmup", "steps": self.warmup})
        if self.schedule != "constant":
            key = "every" if self.schedule == "step_decay" else "steps"
            numbers = self.model_dump(include=set(SHAPES), exclude_none=True)
            factors.append({"name": self.schedule, key: self.schedule_steps, **numbers})
        return factors

    def problems(self) -> list[tuple[str, str]]:
        """Return settings that are missing or would be ignored, each with the reason."""
        import sparsetrain as st

        if self.name not in st.optim.OPTIMIZERS:
            *first, last = map(repr, st.optim.OPTIMIZERS)
            known = f"{', '.join(first)} or {last}{meant(self.name, [*st.optim.OPTIMIZERS])}"
            return [("name", f"optimizer.name = {self.name!r} must be {known}")]
        allowed = st.optim.options_of(self.name)
        problems = [
            (key, f"{self.name} has no option '{key}'; its options are {', '.join(allowed)}")
            for key in self.arguments()
            if key not in allowed
        ]
        used = SCHEDULES[self.schedule]
        for key in ("schedule_steps", *SHAPES):
            if getattr(self, key) is not None and key not in used:
                names = ", ".join(used) or "none of its own"
                text = f"schedule '{self.schedule}' has no '{key}'; its settings are {names}"
                problems.append((key, text))
        if self.schedule != "constant" and self.schedule_steps is None:
            text = f"schedule '{self.schedule}' needs optimizer.schedule_steps"
            problems.append(("schedule", text))
        return problems
