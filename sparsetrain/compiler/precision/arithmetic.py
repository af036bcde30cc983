# SPDX-License-Identifier: Apache-2.0
"""`Arithmetic`: a precision on a target, for the programs and training steps of a model.

Predictors and trainers create it from the name of a precision.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

import tvm

from sparsetrain.compiler.precision.half import to_half
from sparsetrain.compiler.precision.loss_scale import Given, Scaling, Unscaled, scaling_for
from sparsetrain.compiler.precision.policy import Policy, Precision, policy_for
from sparsetrain.errors import ConfigError


class Arithmetic:
    """The rounding policy of programs and the loss scale; see `Trainer` for the arguments.

    Attributes
    ----------
    policy : Policy or None
        Decides which operands are rounded; None for float32.
    scaling : Scaling or None
        The loss scale, or None if the loss is not scaled.
    loss : Scaling or Unscaled
        `scaling`, or `Unscaled` instead of None. Each step reads its fields `inputs` (additional
        inputs of the gradient program) and `scale` (of the gradients).
    """

    def __init__(self, name: Precision, target: Any, loss_scale: Given = None) -> None:
        if not isinstance(name, str):
            raise ConfigError(
                "precision must be a name, which can be saved; pass a custom policy to "
                "sparsetrain.value_and_grad"
            )
        self.name, self.policy = name, policy_for(name, target)
        self.scaling = scaling_for(loss_scale, self.policy)
        self.loss = self.scaling or Unscaled()

    @property
    def arguments(self) -> dict[str, Any]:
        """The arguments that give a trainer this precision and loss scale."""
        return {"precision": self.name, "loss_scale": self.scaling and self.scaling.rule}

    def to_dict(self) -> dict[str, Any]:
        """Return `arguments` as plain values."""
        return self.arguments | {"loss_scale": self.scaling and self.scaling.rule.to_dict()}

    @property
    def counts(self) -> dict[str, Any]:
        """The state that changes from step to step, as plain values."""
        return {"loss_scale": self.scaling and self.scaling.to_dict()}

    @property
    def logged(self) -> dict[str, Any]:
        """The columns that a training log gets: the loss scale, if there is one."""
        return {} if self.scaling is None else {"loss_scale": self.scaling.value}

    def change(self, before: Mapping[str, Any]) -> str:
        """Return a message if the loss scale has changed since `before`, and why; else ""."""
        if self.logged == before:
            return ""
        was, now = before["loss_scale"], self.logged["loss_scale"]
        fell = "a gradient overflowed, nothing was updated"
        why = fell if now < was else "no overflow for long"
        return f"{why}: loss scale {was:,.10g} becomes {now:,.10g}"

    def restore(self, counts: Mapping[str, Any]) -> None:
        """Restore saved `counts` if they belong to the same precision and rule."""
        same = counts.get("precision", self.name) == self.name
        if self.scaling is not None and counts["loss_scale"] is not None and same:
            self.scaling.restore(counts["loss_scale"])


Rounding: TypeAlias = Arithmetic | Policy | None


def resumed(saved: Mapping[str, Any], name: Precision | None, loss_scale: Given) -> dict[str, Any]:
    """Return the arguments of a resumed trainer: the saved arguments unless new ones are given."""
    before = saved["precision"]
    name = name or before
    scale = saved["loss_scale"] if name == before else None
    rule = None if scale is None else Scaling.from_dict(scale).rule
    return {"precision": name, "loss_scale": rule if loss_scale is None else loss_scale}


def rewritten(module: tvm.IRModule, function: str, precision: Rounding) -> tvm.IRModule:
    """Return `module` with one function converted to a precision; None means float32."""
    policy = precision.policy if isinstance(precision, Arithmetic) else precision
    return module if policy is None else to_half(module, function, policy)
