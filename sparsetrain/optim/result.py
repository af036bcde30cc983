# SPDX-License-Identifier: Apache-2.0
"""Scale of the gradients of a step, and its result: taken, or skipped at NaN or infinity."""

from __future__ import annotations

from typing import NamedTuple

from sparsetrain.errors import NumericalError
from sparsetrain.optim.state import State


class Scale(NamedTuple):
    """Scale of the gradients of one step.

    Parameters
    ----------
    factor : float
        Multiplies the gradients, where a rule is `scaled`.
    loss_scale : float
        Their scale, which `factor` undoes.
    may_overflow : bool
        Whether a gradient may be infinite because of it.
    norm : float, optional
        Global norm of the gradients without it, if it is known.
    """

    factor: float = 1.0
    loss_scale: float = 1.0
    may_overflow: bool = False
    norm: float | None = None


NO_SCALE = Scale()


class StepResult(NamedTuple):
    """Outcome of one optimizer step.

    Parameters
    ----------
    step : int
        Its number, from 1; of a skipped step, that of the step before.
    norm : float or None
        Global norm of the gradients before clipping, if `clip_norm` is set.
    skipped : str or None
        The reason why nothing was updated.
    overflowed : bool
        Whether the loss scale may be that reason.
    """

    step: int
    norm: float | None = None
    skipped: str | None = None
    overflowed: bool = False


def skip_step(state: State, problem: str, scale: Scale, overflowed: bool) -> StepResult:
    """Count a step that is not taken, or raise.

    Raises
    ------
    NumericalError
        If the optimizer stops at non-finite numbers, unless a scale may have caused them.
    """
    if state.owner.on_nonfinite == "stop" and not overflowed:
        is_scaled = scale.loss_scale != 1
        scaled = f", with the loss scaled by {scale.loss_scale:,.10g}" if is_scaled else ""
        first = "the loss scale, " if is_scaled else ""
        raise NumericalError(
            f"{problem} in step {state.step + 1}{scaled}: nothing was updated; lower "
            f"{first}the learning rate or look at this batch's dense features"
        )
    state.skipped += 1
    return StepResult(state.step, skipped=problem, overflowed=overflowed)
