# SPDX-License-Identifier: Apache-2.0
"""All of a step that comes before its first write: it becomes a `Step`, or is left out.

In order: arguments that fit, numbers that are finite, the global norm, then `Step`, which makes the
plans. What the last step found out about the same tensors is not asked again.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import isfinite
from typing import TYPE_CHECKING

from sparsetrain.errors import ConfigError, NumericalError
from sparsetrain.optim.arguments import check_arguments
from sparsetrain.optim.bound import Bound, bound_to
from sparsetrain.optim.gradients import Gradient, coalesced, global_norm, is_finite, nonfinite
from sparsetrain.optim.owner import own_
from sparsetrain.optim.paths.parting import begin_sorts
from sparsetrain.optim.state import State
from sparsetrain.optim.step import Applied, Step
from sparsetrain.runtime import NDArray
from sparsetrain.system.argument_checks import is_number, require_mapping

if TYPE_CHECKING:
    from sparsetrain.optim.optimizer import Optimizer


def prepare(
    optimizer: Optimizer,
    params: Mapping[str, NDArray],
    gradients: Mapping[str, Gradient],
    state: State,
    loss: NDArray | None,
    scale: float,
    may_overflow: bool,
) -> Step | Applied:
    """See `Optimizer.prepare`."""
    bound = _bound(optimizer, params, gradients, state)
    _require_scaled(state, scale, optimizer.clip_norm)
    # Gradients of which a norm is taken are coalesced before.
    sorts = begin_sorts(gradients, state, bound.sorts) if optimizer.clip_norm is None else {}
    try:
        problem = nonfinite(loss, gradients, bound.search(loss))
    except (RuntimeError, TypeError, ValueError):
        check_arguments(optimizer.formula, params, gradients, state)  # in words that name it
        raise
    if problem is not None:
        return left_out(optimizer, problem, state, scale, may_overflow and is_finite(loss))
    norm, factor = None, 1 / scale
    if optimizer.clip_norm is not None:
        gradients = coalesced(gradients)
        norm = global_norm(gradients) / scale
        if not isfinite(norm):  # duplicates may overflow only in their sum
            problem = "the global norm is not finite"
            return left_out(optimizer, problem, state, scale, may_overflow)
        factor *= min(1.0, optimizer.clip_norm / (norm + 1e-6))
    return Step(params, gradients, state, factor, norm, bound, sorts)


def left_out(
    optimizer: Optimizer, problem: str, state: State, scale: float, overflowed: bool
) -> Applied:
    """Count a step that is not taken, or raise.

    Raises
    ------
    NumericalError
        If the optimizer stops at what is not finite, unless a scale may have made it so.
    """
    if optimizer.on_nonfinite == "stop" and not overflowed:
        scaled = f", with the loss scaled by {scale:,.10g}" if scale != 1 else ""
        first = "the loss scale, " if scale != 1 else ""
        raise NumericalError(
            f"{problem} in step {state.step + 1}{scaled}: nothing was updated; lower "
            f"{first}the learning rate or look at this batch's dense features"
        )
    state.skipped += 1
    return Applied(state.step, skipped=problem, overflowed=overflowed)


def _bound(
    optimizer: Optimizer,
    params: Mapping[str, NDArray],
    gradients: Mapping[str, Gradient],
    state: State,
) -> Bound:
    """What the last step found out, if this one is given the same; else all is checked."""
    require_mapping("optimizer: params", params)
    require_mapping("optimizer: gradients", gradients)
    if isinstance(state, State) and state.owner is optimizer:
        known: Bound | None = state.bound
        if known is not None and known.holds(params, gradients, state):
            return known
    check_arguments(optimizer.formula, params, gradients, state)
    own_(optimizer, params, state)
    return bound_to(params, gradients, state)


def _require_scaled(state: State, scale: float, clip_norm: float | None) -> None:
    if scale == 1:
        return
    if not (is_number(scale) and 0 < scale < float("inf")):
        raise ConfigError(f"optimizer: scale is finite and above 0, not {scale!r}")
    if not state.scaled and clip_norm is None:
        raise ConfigError("optimizer: for gradients with a scale use init(..., scaled=True)")
