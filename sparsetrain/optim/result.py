# SPDX-License-Identifier: Apache-2.0
"""Result of a step: taken, or skipped because of NaN or infinity."""

from __future__ import annotations

from typing import NamedTuple

from sparsetrain.compiler.precision.loss_scale import Scale
from sparsetrain.errors import NumericalError
from sparsetrain.optim.gradients import is_finite
from sparsetrain.optim.state import State
from sparsetrain.runtime import NDArray


class StepResult(NamedTuple):
    """Outcome of one optimizer step.

    Parameters
    ----------
    step : int
        Its number, from 1; a skipped step has the number of the previous step.
    norm : float or None
        Global norm of the gradients before clipping, if `clip_norm` is set.
    skipped : str or None
        The reason why nothing was updated.
    overflowed : bool
        Whether the loss scale may be the reason.
    """

    step: int
    norm: float | None = None
    skipped: str | None = None
    overflowed: bool = False


def skip_step(state: State, problem: str, scale: Scale, loss: NDArray | None) -> StepResult:
    """Count a skipped step, or raise; a loss scale cannot cause an infinite loss.

    Raises
    ------
    NumericalError
        If the optimizer stops at non-finite numbers, unless a scale may have caused them.
    """
    overflowed = scale.may_overflow and is_finite(loss)
    if state.owner.on_nonfinite == "stop" and not overflowed:
        raise NumericalError(scale.explain(problem, state.step + 1))
    state.skipped += 1
    return StepResult(state.step, skipped=problem, overflowed=overflowed)
