# SPDX-License-Identifier: Apache-2.0
"""Recording of some steps: by `Trainer.profile`, or during `Trainer.fit`.

Every recorded step is a step like any other, with the same bits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from statistics import median

from sparsetrain import runtime
from sparsetrain.data import Batch
from sparsetrain.errors import ConfigError
from sparsetrain.runtime import gpu
from sparsetrain.training.profile.recorder import Entry, Recorder
from sparsetrain.training.profile.result import StepProfile, kernel_times, longest_first
from sparsetrain.training.step import Loss, loss_inputs
from sparsetrain.training.trained_model import TrainedModel

WARM, RECORDED = 5, 40  # steps; half of the recorded ones are for the kernels of programs


class Watch:
    """Lets the first `WARM` steps of a trainer pass and records those after them.

    Parameters
    ----------
    trainer : TrainedModel
    steps : int
        How many steps are recorded; at least 2.
    """

    def __init__(self, trainer: TrainedModel, steps: int = RECORDED) -> None:
        self._trainer, self._warm, self._left = trainer, WARM, max(2, steps)
        self._rows = 0
        self._seconds: list[float] = []
        self._single: list[dict[str, Entry]] = []
        self._program: list[dict[str, Entry]] = []

    @contextmanager
    def recording(self) -> Iterator[None]:
        """Let the trainer's steps pass through `step` meanwhile.

        Raises
        ------
        ConfigError
            If the target is CUDA.
        """
        if gpu.is_cuda(self._trainer.target):
            raise ConfigError("profile: on CUDA a call returns before its kernel ends; use nsys")
        self._trainer.watch = self.step
        try:
            yield
        finally:
            self._trainer.watch = None

    def step(self, run: Callable[[], Loss], batch: Batch) -> Loss:
        """Call `run`, which trains on `batch`, and return what it returns."""
        if self._warm:
            self._warm -= 1
            return run()
        # A last, smaller batch would mix its times with those of others.
        if not self._left or (self._rows and len(batch) != self._rows):
            return run()
        self._rows, self._left = len(batch), self._left - 1
        return self._record(run, Recorder(self._lookups(batch)))

    def _lookups(self, batch: Batch) -> dict[int, int]:
        """Rows of each storage -> how many rows a step on `batch` looks up in it."""
        params = self._trainer.params
        rows_read = self._trainer.model.rows_read(loss_inputs(self._trainer, batch))
        return {int(params[name].shape[0]): int(rows.size) for name, rows in rows_read.items()}

    def _record(self, run: Callable[[], Loss], recorder: Recorder) -> Loss:
        results: list[Loss] = []

        def keep() -> None:
            results.append(run())

        if len(self._seconds) > len(self._program):
            self._program.append(recorder.program_of(keep, self._trainer.training_step.machines))
        else:
            seconds, kernels = recorder.single_of(keep)
            self._seconds.append(seconds)
            self._single.append(kernels)
        return results[0]

    def result(self) -> StepProfile | None:
        """What was recorded; None if there were too few steps."""
        if not self._program:
            return None
        kernels = kernel_times(self._program) + kernel_times(self._single)
        return StepProfile(
            self._rows,
            len(self._seconds) + len(self._program),
            runtime.num_threads(),
            median(self._seconds),
            longest_first(kernels),
        )
