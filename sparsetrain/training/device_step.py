# SPDX-License-Identifier: Apache-2.0
"""Training step on a GPU, whose inputs and plan may have been sent ahead."""

from __future__ import annotations

from sparsetrain.data import Batch
from sparsetrain.optim import StepResult
from sparsetrain.runtime import NDArray
from sparsetrain.training.device_prefetch import DevicePrefetcher
from sparsetrain.training.step import Trainable, TrainingStep, step_inputs


class DeviceTrainingStep(TrainingStep):
    """Steps of a trainer on a GPU: the gradient program, then the launches of the update."""

    _on_host = False

    def __init__(self, trainer: Trainable, ahead: DevicePrefetcher) -> None:
        super().__init__(trainer)
        self._ahead = ahead

    @property
    def _reads_gradients(self) -> bool:
        return True

    def run_(self, batch: Batch) -> tuple[NDArray, StepResult]:
        """See `TrainingStep.run_`."""
        ready = self._ahead.ready(batch)
        if ready is None:
            return super().run_(batch)
        trainer = self._trainer
        rows = trainer.model.rows_read(ready.inputs)
        trainer.optimizer.catch_up_(trainer.params, rows, trainer.state)
        inputs = self._ahead.tensors(ready) | step_inputs(trainer)
        loss, gradients = trainer.program(trainer.params, inputs, checked=True)
        for name in ready.planned:
            plan = ready.plan(name, gradients[name].indices)
            if plan is not None:
                trainer.state.plans[name] = gradients[name], plan
        try:
            return self._apply_(loss, gradients)
        finally:
            trainer.state.plans.clear()
