# SPDX-License-Identifier: Apache-2.0
"""How a trainer takes a step: the gradients of a batch, in one part or several, then the update.

Every way does the same in the same order, to the same bits: rows that the program will read are
made current, all gradients are computed and checked, everything is written. A `trainer` is a
`Trainer`, which this file does not know; its `params` and `state` are written.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from typing import Any

import numpy as np

from sparsetrain import runtime
from sparsetrain.ad.gradient import LOSS_SCALE
from sparsetrain.compiler.precision import Scaling
from sparsetrain.data import Batch
from sparsetrain.data.micro_batches import micro_batches
from sparsetrain.optim import Applied, accumulate_
from sparsetrain.optim.fused.layout import layout_of
from sparsetrain.optim.step import Step
from sparsetrain.runtime import NDArray, gpu
from sparsetrain.runtime.targets import device_of
from sparsetrain.runtime.tensors import on_gpu, to_device
from sparsetrain.training.fused_step import FusedProgram, FusedSteps

Taken = tuple[NDArray, Applied]  # the loss of the whole batch, and what became of the step


class Loss:
    """Mean loss of a batch, before the step; ``float(loss)`` and ``f"{loss:.4f}"`` read it."""

    def __init__(self, tensor: NDArray) -> None:
        self._tensor = tensor

    def __float__(self) -> float:
        return float(runtime.as_numpy(self._tensor))

    def __format__(self, spec: str) -> str:
        return format(float(self), spec)

    def __repr__(self) -> str:
        return f"Loss({float(self):.6f})"


class Separate:
    """The gradient program, then the kernels of the optimizer; the other ways do it quicker."""

    def take_(self, trainer: Any, batch: Batch) -> Taken:
        """Train on a batch with labels."""
        gradients_of = _summed_gradients if trainer.accumulate > 1 else _gradients
        return _update_(trainer, *gradients_of(trainer, batch))

    def machine(self, trainer: Any) -> Any:
        """The virtual machine that runs in a step."""
        return trainer.program.machine


def _gradients(trainer: Any, batch: Batch) -> tuple[NDArray, Mapping[str, Any]]:
    return trainer.program(trainer.params, _inputs(trainer, batch))


def _summed_gradients(trainer: Any, batch: Batch) -> tuple[NDArray, Mapping[str, Any]]:
    """Loss and gradients of a batch that is computed in parts."""
    total, acc = np.float64(0), dict[str, Any]()
    for part in micro_batches(batch, trainer.accumulate):
        loss, gradients = _gradients(trainer, part)
        share = len(part) / len(batch)
        total += share * float(Loss(loss))
        accumulate_(gradients, acc, share)
    loss = runtime.as_tensor(np.float32(total))
    return to_device(loss, device_of(trainer.target)), acc


def _inputs(trainer: Any, batch: Batch) -> dict[str, Any]:
    """The program's inputs; the rows that it will read are current."""
    is_cuda = gpu.is_cuda(trainer.target)
    inputs: dict[str, Any] = trainer.model.inputs(batch, threads=not is_cuda)
    rows = trainer.model.rows_read(inputs)
    trainer.optimizer.catch_up_(trainer.params, rows, trainer.state)
    return inputs | scale_input(trainer.scaling)


def _update_(trainer: Any, loss: NDArray, gradients: Mapping[str, Any]) -> Taken:
    """Check the gradients, read the loss, write the updates: on a device all wait but once."""
    step = trainer.optimizer.prepare(
        trainer.params, gradients, trainer.state, loss=loss, **_scale(trainer)
    )
    seen = _seen(loss)
    return seen, step.finish_() if isinstance(step, Step) else step


def _seen(loss: NDArray) -> NDArray:
    """A loss on the host: read before the updates are launched, it need not wait for them."""
    return runtime.as_tensor(runtime.as_numpy(loss)) if on_gpu(loss) else loss


def scale_input(scaling: Scaling | None) -> dict[str, Any]:
    """What a program of a scaled loss takes beside the model's inputs."""
    return {} if scaling is None else {LOSS_SCALE: np.float32(scaling.value)}


def _scale(trainer: Any) -> dict[str, Any]:
    """What the optimizer is told about the gradients."""
    scaling = trainer.scaling
    if scaling is None:
        return {}
    return {"scale": float(np.float32(scaling.value)), "may_overflow": scaling.can_fall}


class OnDevice(Separate):
    """The same, on a GPU, where inputs and plan may have been sent ahead."""

    def take_(self, trainer: Any, batch: Batch) -> Taken:
        """See `Separate`."""
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


class Fused(Separate):
    """One program that updates too, where the optimizer's rules allow it; else as above."""

    def __init__(self) -> None:
        self._ranges: Any = None
        self._steps: FusedSteps | None = None

    def take_(self, trainer: Any, batch: Batch) -> Taken:
        """See `Separate`."""
        if trainer.accumulate > 1:
            return super().take_(trainer, batch)
        inputs = _inputs(trainer, batch)
        steps = self._steps_of(trainer)
        lookups = {n: prod(rows.shape) for n, rows in trainer.model.rows_read(inputs).items()}
        if steps is None:
            return _update_(trainer, *trainer.program(trainer.params, inputs))
        return steps.take_(
            trainer.params,
            inputs,
            trainer.optimizer,
            trainer.state,
            lookups=max(lookups.values(), default=0),
            **_scale(trainer),
        )

    def machine(self, trainer: Any) -> Any:
        """See `Separate`."""
        steps = self._steps_of(trainer) if trainer.accumulate == 1 else None
        return super().machine(trainer) if steps is None else steps.program.machine

    def _steps_of(self, trainer: Any) -> FusedSteps | None:
        """For the rules in force; those of another optimizer may need another program."""
        if self._ranges is not trainer.state.ranges:
            self._ranges, self._steps = trainer.state.ranges, self._new_steps(trainer)
        return self._steps

    def _new_steps(self, trainer: Any) -> FusedSteps | None:
        gradient = trainer.program.gradient
        shapes = {name: tuple(map(int, param.shape)) for name, param in trainer.params.items()}
        columns: dict[str, Any] = getattr(trainer.model, "columns", dict)()
        layout = layout_of(gradient.structure, shapes, trainer.state, columns)
        if layout is None or trainer.optimizer.clip_norm is not None:
            return None
        known: dict[Any, Any] = trainer.program.fused
        if layout not in known:
            known[layout] = FusedProgram(gradient, layout, trainer.target, trainer._policy)
        return FusedSteps(known[layout], trainer.state)


def way(fused: bool, target: Any) -> Separate:
    """How steps are taken on a target."""
    if gpu.is_cuda(target):
        return OnDevice()
    return Fused() if fused else Separate()
