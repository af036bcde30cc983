# SPDX-License-Identifier: Apache-2.0
"""How a trainer takes a step: the gradients of a batch, in one part or several, then the update.

Every way does the same in the same order, to the same bits: rows that the program will read are
made current, all gradients are computed and checked, everything is written.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np

from sparsetrain import runtime
from sparsetrain.ad.gradient import LOSS_SCALE
from sparsetrain.build import GradientProgram
from sparsetrain.data import Batch
from sparsetrain.data.split import split
from sparsetrain.errors import ConfigError
from sparsetrain.inlined import InlinedProgram, InlinedStep
from sparsetrain.optim import Applied, Optimizer, State, accumulate_
from sparsetrain.optim.step import Step
from sparsetrain.precision import Policy, Scaling

Taken = tuple[runtime.NDArray, Applied]  # the loss of the whole batch, and what became of the step


class Loss:
    """Mean loss of a batch, before the step; ``float(loss)`` reads it."""

    def __init__(self, tensor: runtime.NDArray) -> None:
        self._tensor = tensor

    def __float__(self) -> float:
        return float(runtime.as_numpy(self._tensor))

    def __repr__(self) -> str:
        return f"Loss({float(self):.6f})"


class Stepping(Protocol):
    """Whose step it is: a `Trainer`, which this file does not know; `params`, `state` change."""

    model: Any
    params: dict[str, runtime.NDArray]
    optimizer: Optimizer
    state: State
    accumulate: int
    target: Any
    scaling: Scaling | None
    _policy: Policy | None
    _ahead: Any

    @property
    def program(self) -> GradientProgram:
        """Gives loss and gradients."""
        ...


class Way(Protocol):
    """One way to take steps."""

    def take_(self, trainer: Stepping, batch: Batch) -> Taken:
        """Train on a batch with labels."""
        ...

    def machine(self, trainer: Stepping) -> Any:
        """The virtual machine that runs in a step."""
        ...


class Apart:
    """The gradient program, then the kernels of the optimizer."""

    def take_(self, trainer: Stepping, batch: Batch) -> Taken:
        """See `Way`."""
        gradients_of = _summed_gradients if trainer.accumulate > 1 else _gradients
        return _update_(trainer, *gradients_of(trainer, batch))

    def machine(self, trainer: Stepping) -> Any:
        """See `Way`."""
        return trainer.program.machine


class OnDevice(Apart):
    """The same, on a GPU, where inputs and plan may have been sent ahead."""

    def take_(self, trainer: Stepping, batch: Batch) -> Taken:
        """See `Way`."""
        ready = trainer._ahead.ready(batch)
        if ready is None:
            return super().take_(trainer, batch)
        rows = trainer.model.rows_read(ready.inputs)
        trainer.optimizer.catch_up_(trainer.params, rows, trainer.state)
        tensors = trainer._ahead.tensors(ready)
        inputs = tensors | scale_input(trainer.scaling)
        loss, gradients = trainer.program(trainer.params, inputs, checked=True)
        for name in ready.planned:
            plan = ready.plan(name, gradients[name].indices)
            if plan is not None:
                trainer.state.plans[name] = gradients[name], plan
        try:
            return _update_(trainer, loss, gradients)
        finally:
            trainer.state.plans.clear()


class Inlined:
    """One program that updates dense parameters too; the optimizer does the tables."""

    def __init__(self) -> None:
        self._program: InlinedProgram | None = None

    def take_(self, trainer: Stepping, batch: Batch) -> Taken:
        """See `Way`."""
        parts = list(split(batch, trainer.accumulate))
        inputs = _inputs(trainer, parts[0])
        program = self._program_of(trainer)
        step = InlinedStep(
            program, trainer.params, trainer.optimizer, trainer.state, len(parts), _scale(trainer)
        )
        step.run_(inputs, len(parts[0]) / len(batch))
        for part in parts[1:]:
            step.run_(_inputs(trainer, part), len(part) / len(batch))
        return step.loss, step.applied

    def machine(self, trainer: Stepping) -> Any:
        """See `Way`."""
        return self._program_of(trainer).machine

    def _program_of(self, trainer: Stepping) -> InlinedProgram:
        """The program for the rules in force; another optimizer's rules make another one."""
        if self._program is None or self._program.ranges is not trainer.state.ranges:
            self._program = InlinedProgram(
                trainer.program.gradient, trainer.state, trainer.target, trainer._policy
            )
        return self._program


_WAYS: dict[str, type[Apart] | type[Inlined]] = {"apart": Apart, "inlined": Inlined}


def way(dense_update: str, target: Any) -> Way:
    """The way of this name.

    Raises
    ------
    ConfigError
        If there is none, or none on this target.
    """
    if dense_update not in _WAYS:
        raise ConfigError(f"dense_update is 'apart' or 'inlined', not {dense_update!r}")
    if dense_update == "inlined" and runtime.gpu.is_cuda(target):
        raise ConfigError("dense_update='inlined' is for the CPU; on CUDA use 'apart'")
    return OnDevice() if runtime.gpu.is_cuda(target) else _WAYS[dense_update]()


def _inputs(trainer: Stepping, batch: Batch) -> dict[str, Any]:
    """The program's inputs; the rows that it will read are current."""
    inputs: dict[str, Any] = trainer.model.inputs(batch)
    rows = trainer.model.rows_read(inputs)
    trainer.optimizer.catch_up_(trainer.params, rows, trainer.state)
    return inputs | scale_input(trainer.scaling)


def scale_input(scaling: Scaling | None) -> dict[str, Any]:
    """What a program of a scaled loss takes beside the model's inputs."""
    return {} if scaling is None else {LOSS_SCALE: np.float32(scaling.value)}


def _scale(trainer: Stepping) -> dict[str, Any]:
    """What the optimizer is told about the gradients."""
    scaling = trainer.scaling
    if scaling is None:
        return {}
    return {"scale": float(np.float32(scaling.value)), "may_overflow": scaling.can_fall}


def _gradients(trainer: Stepping, batch: Batch) -> tuple[runtime.NDArray, Mapping[str, Any]]:
    return trainer.program(trainer.params, _inputs(trainer, batch))


def _update_(trainer: Stepping, loss: runtime.NDArray, gradients: Mapping[str, Any]) -> Taken:
    """Check the gradients, read the loss, write the updates: on a device all wait but once."""
    step = trainer.optimizer.prepare(
        trainer.params, gradients, trainer.state, loss=loss, **_scale(trainer)
    )
    seen = _seen(loss)
    return seen, step.finish_() if isinstance(step, Step) else step


def _seen(loss: runtime.NDArray) -> runtime.NDArray:
    """A loss on the host: read before the updates are launched, it need not wait for them."""
    return runtime.as_tensor(runtime.as_numpy(loss)) if runtime.on_gpu(loss) else loss


def _summed_gradients(trainer: Stepping, batch: Batch) -> tuple[runtime.NDArray, Mapping[str, Any]]:
    """Loss and gradients of a batch that is computed in parts."""
    total, acc = np.float64(0), dict[str, Any]()
    for part in split(batch, trainer.accumulate):
        loss, gradients = _gradients(trainer, part)
        share = len(part) / len(batch)
        total += share * float(Loss(loss))
        accumulate_(gradients, acc, share)
    loss = runtime.as_tensor(np.float32(total))
    return runtime.moved(loss, runtime.device_of(trainer.target)), acc
