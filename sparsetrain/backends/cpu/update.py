# SPDX-License-Identifier: Apache-2.0
"""Optimizer steps on a CPU, given gradients: each step is one call of an `UpdateProgram`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sparsetrain import runtime
from sparsetrain.compiler.precision.loss_scale import Scale
from sparsetrain.optim.gradients import Gradient
from sparsetrain.optim.result import StepResult
from sparsetrain.optim.state import State
from sparsetrain.optim.update.apply import check_arguments
from sparsetrain.optim.update.function import given_gradients, leaves_of
from sparsetrain.optim.update.layout import layout_of, tables_of
from sparsetrain.optim.update.program import UpdateProgram, UpdateStep
from sparsetrain.runtime import NDArray

_FUNCTION = "update"
_NO_LOSS = runtime.zeros((), "float32")


class HostStep:
    """A `Step` (see `optim.update.apply`) that runs a program, which is cached in the state."""

    def __init__(
        self,
        params: Mapping[str, NDArray],
        gradients: Mapping[str, Gradient],
        state: State,
        loss: NDArray | None,
        kinds: Any,
    ) -> None:
        loss = _NO_LOSS if loss is None else loss
        module, structure = given_gradients(_FUNCTION, params, gradients, loss)
        layout = layout_of(structure, state)
        program = state.programs.get((kinds, layout))
        if program is None:
            program = UpdateProgram(module, _FUNCTION, structure, layout)
            state.programs[kinds, layout] = program
        self._step, self._tables = UpdateStep(program, state), tables_of(structure)

    @property
    def machines(self) -> list[Any]:
        """See `Step`."""
        return [self._step.program.machine]

    def run_(
        self,
        params: Mapping[str, NDArray],
        gradients: Mapping[str, Gradient],
        state: State,
        loss: NDArray | None,
        scale: Scale,
    ) -> tuple[NDArray | None, StepResult]:
        """See `Step`."""
        state.tables.require_current(params, gradients, self._tables)
        sizes = [gradients[name].nse for name in self._tables]
        leaves = leaves_of(_NO_LOSS if loss is None else loss, gradients)
        try:
            _, result = self._step.run_(params, leaves, state, max(sizes, default=0), scale)
        except (RuntimeError, TypeError, ValueError):  # check_arguments' error names the argument
            check_arguments(state.owner.full_formula, params, gradients, state)
            raise
        return loss, result
