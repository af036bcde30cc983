# SPDX-License-Identifier: Apache-2.0
"""Training step: from a batch to updated parameters.

One compiled program computes the loss and the gradients, checks them, and updates the parameters in
place. If a value is needed in between (the global norm, the sum over parts of a batch), the
gradient program runs first, then the update, with the same bits.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from typing import Any, Protocol

import numpy as np

from sparsetrain import runtime
from sparsetrain.compiler.precision.arithmetic import Arithmetic
from sparsetrain.compiler.program import GradientProgram
from sparsetrain.data import Batch
from sparsetrain.data.batch import micro_batches
from sparsetrain.models.draws import Draws
from sparsetrain.models.layers import dropout_inputs
from sparsetrain.optim import Optimizer, State, StepResult, accumulate_
from sparsetrain.optim.state_factory import adopt_state_
from sparsetrain.optim.update.apply import apply_
from sparsetrain.optim.update.layout import Layout, layout_of
from sparsetrain.optim.update.program import UpdateProgram, UpdateStep
from sparsetrain.runtime import NDArray
from sparsetrain.tables.collection import Tables


class Trainable(Protocol):
    """The part of a `Trainer` that a step uses."""

    model: Any
    optimizer: Optimizer
    params: Tables
    state: State
    target: Any
    accumulate: int
    steps: int
    arithmetic: Arithmetic
    draws: bool

    @property
    def seed(self) -> int:
        """Seed of the dropout masks."""

    @property
    def program(self) -> GradientProgram:
        """The gradient program."""


class Loss:
    """Mean loss of a batch before the step; read it with ``float(loss)`` or ``f"{loss:.4f}"``."""

    def __init__(self, tensor: NDArray) -> None:
        self._tensor = tensor

    def __float__(self) -> float:
        return float(runtime.as_numpy(self._tensor))

    def __format__(self, spec: str) -> str:
        return format(float(self), spec)

    def __repr__(self) -> str:
        return f"Loss({float(self):.6f})"


class TrainingStep:
    """Steps of a trainer: they read the trainer, and write its parameters and state."""

    trusts = False  # whether the program skips the check of ids

    def __init__(self, trainer: Trainable) -> None:
        self._trainer = trainer
        self._owner: Any = None  # the state's owner when `_fused` was made
        self._fused: UpdateStep | None = None
        self._programs: dict[Layout, UpdateProgram] = {}

    def run_(self, batch: Batch) -> tuple[NDArray, StepResult]:
        """Train on a batch with labels; return the loss and the result of the step."""
        trainer = self._trainer
        if self._reads_gradients:
            loss, gradients = self._gradients(batch)
            return self._apply_(loss, gradients)
        inputs, rows = self._inputs(batch)
        weights, lookups = trainer.params.rows(rows), 0
        for indices in rows.values():
            lookups = max(lookups, prod(indices.shape))
        scale = trainer.arithmetic.loss.scale
        return self._fused_step().run_(weights, inputs, trainer.state, lookups, scale)

    def compile(self) -> None:
        """Compile the first program of a step."""
        _ = self.machines

    @property
    def machines(self) -> list[Any]:
        """The TVM virtual machines that run in a step."""
        trainer = self._trainer
        if not self._reads_gradients:
            return [self._fused_step().program.machine]
        updates = trainer.state.update_steps.values()
        return [trainer.program.machine, *(m for step in updates for m in step.machines)]

    @property
    def _reads_gradients(self) -> bool:
        """Whether gradients are needed before the update begins."""
        return self._trainer.accumulate > 1 or self._trainer.optimizer.clip_norm is not None

    def _fused_step(self) -> UpdateStep:
        """Return the program of gradients and updates for the current rules."""
        trainer, state = self._trainer, self._trainer.state
        if self._fused is None or self._owner is not state.owner:
            found, structure = trainer.program, trainer.program.gradient.structure
            layout = layout_of(structure, state)
            if layout not in self._programs:
                self._programs[layout] = UpdateProgram(
                    found.module, found.function, structure, layout, trainer.target
                )
            program = self._programs[layout]
            self._owner, self._fused = state.owner, UpdateStep(program, state)
        return self._fused

    def _inputs(self, batch: Batch, first_row: int = 0) -> tuple[dict[str, Any], Mapping[str, Any]]:
        """Return the program's inputs, and the rows that it will read."""
        trainer = self._trainer
        if trainer.state.owner is not trainer.optimizer:
            adopt_state_(trainer.optimizer, trainer.params, trainer.state)
        inputs = loss_inputs(trainer, batch, first_row, threads=True)
        rows: Mapping[str, Any] = trainer.model.rows_read(inputs)
        return inputs, rows

    def _gradients(self, batch: Batch) -> tuple[NDArray, Mapping[str, Any]]:
        """Return loss and gradients of a batch, computed in parts if `accumulate` is above 1."""
        trainer = self._trainer
        if trainer.accumulate == 1:
            return self._gradients_of(batch)
        total, summed, first_row = np.float64(0), dict[str, Any](), 0
        for part in micro_batches(batch, trainer.accumulate):
            loss, gradients = self._gradients_of(part, first_row)
            first_row += len(part)
            share = len(part) / len(batch)
            total += share * float(Loss(loss))
            accumulate_(gradients, summed, share, coalesce=False)
        return runtime.as_tensor(np.float32(total)), summed

    def _gradients_of(self, batch: Batch, first_row: int = 0) -> tuple[NDArray, Mapping[str, Any]]:
        """Return loss and gradients of a part of a batch."""
        inputs, rows = self._inputs(batch, first_row)
        weights = self._trainer.params.rows(rows)
        return self._trainer.program(weights, inputs, checked=self.trusts)

    def _apply_(self, loss: NDArray, gradients: Mapping[str, Any]) -> tuple[NDArray, StepResult]:
        trainer = self._trainer
        scale = trainer.arithmetic.loss.scale
        seen, result = apply_(
            trainer.optimizer, trainer.params, gradients, trainer.state, loss, scale
        )
        return (loss if seen is None else seen), result


def loss_inputs(
    trainer: Trainable, batch: Batch, first_row: int = 0, *, threads: bool = False
) -> dict[str, Any]:
    """Return all inputs of a gradient program for rows of a batch, from `first_row` on."""
    model = trainer.model
    draws = Draws(trainer.seed, trainer.steps, first_row) if model.prepared else None
    inputs: dict[str, Any] = model.inputs(batch, threads=threads, draws=draws, function="loss")
    return inputs | step_inputs(trainer, first_row)


def step_inputs(trainer: Trainable, first_row: int = 0) -> dict[str, Any]:
    """Return a gradient program's inputs besides the batch: the loss scale and dropout key."""
    inputs = {**trainer.arithmetic.loss.inputs}
    if trainer.draws:
        inputs |= dropout_inputs(trainer.seed, trainer.steps, first_row)
    return inputs
