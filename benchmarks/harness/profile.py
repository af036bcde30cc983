# SPDX-License-Identifier: Apache-2.0
"""Profiling arm: kernels of our step, and the phases around them.

Kernels are recorded by `sparsetrain.training.profile`; the phases are timed here, in steps
without instruments in the virtual machine.
"""

import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from statistics import median
from typing import Any

from harness.ours import Ours
from harness.task import Task
from sparsetrain.compiler.program import GradientProgram
from sparsetrain.optim.update.program import UpdateStep
from sparsetrain.training.profile import Entry, Recorder, kernel_times

STEP = "the rest of the step"
PROGRAM = "programs, outside their kernels"


class Profile:
    """Takes the steps of `Ours` with every kernel recorded."""

    def __init__(self, task: Task) -> None:
        lookups = task.batch * task.config.features
        self.recorder = Recorder({sum(task.config.rows): lookups})
        self.ours = Ours(task)
        self._phases: defaultdict[str, float] = defaultdict(float)
        trainer = self.ours.trainer
        self._time_phase_(type(trainer.model), "inputs", "checks and offsets of ids")
        self._time_phase_(GradientProgram, "__call__", PROGRAM)
        self._time_phase_(UpdateStep, "run_", PROGRAM)

    def turn(self, warm: int, timed: int) -> dict[str, Any]:
        """Median seconds of each kernel and phase of a step; together they make up the step."""
        for number in range(warm):
            self.ours.step(number)
        phases: list[dict[str, float]] = []
        single: list[dict[str, Entry]] = []
        program: list[dict[str, Entry]] = []
        machines = self.ours.trainer.training_step.machines
        for number in range(timed):
            self._phases.clear()
            seconds, kernels = self.recorder.single_of(partial(self.ours.step, 2 * number))
            inside = sum(entry.seconds for entry in kernels.values())
            phases.append(self._phases | {STEP: seconds - inside - sum(self._phases.values())})
            single.append(kernels)
            # Another batch: the rows of the same one would still be in the caches.
            step = partial(self.ours.step, 2 * number + 1)
            program.append(self.recorder.program_of(step, machines))
        in_program = kernel_times(program)
        outside = {name: median(step[name] for step in phases) for name in phases[0]}
        outside[PROGRAM] -= sum(kernel.seconds for kernel in in_program)
        kernels_of_step = [vars(kernel) for kernel in in_program + kernel_times(single)]
        step_seconds = sum(k["seconds"] for k in kernels_of_step) + sum(outside.values())
        return {"step": step_seconds, "kernels": kernels_of_step, "outside": outside}

    def about(self) -> dict[str, Any]:
        return self.ours.about()

    @contextmanager
    def _phase(self, name: str) -> Iterator[None]:
        """Add the time of the block, less that of single kernels, to phase `name`."""
        began, inside = time.perf_counter(), self.recorder.inside
        yield
        elapsed = time.perf_counter() - began
        self._phases[name] += elapsed - (self.recorder.inside - inside)

    def _time_phase_(self, owner: type, method: str, name: str) -> None:
        original = getattr(owner, method)

        def timed(*args: Any, **options: Any) -> Any:
            with self._phase(name):
                return original(*args, **options)

        setattr(owner, method, timed)
