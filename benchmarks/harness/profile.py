# SPDX-License-Identifier: Apache-2.0
"""The arm that profiles a step of ours: kernels, and the phases of a step around them."""

from functools import partial
from statistics import median
from typing import Any

from harness.recorder import STEP, Entry, Recorder
from harness.task import Task

PROGRAM = "program, outside its kernels"


class Profile:
    """Steps as `Ours` does, but with every kernel recorded."""

    def __init__(self, task: Task) -> None:
        lookups = task.batch * task.config.features
        self.recorder = Recorder(sum(task.config.rows), lookups)
        self.recorder.open_doors()  # before anything is compiled
        from harness.ours import Ours

        self.ours = Ours(task)
        trainer = self.ours.trainer
        self._time_phase_(type(trainer.model), "inputs", "checks and places of ids")
        self._time_phase_(type(trainer.program), "__call__", PROGRAM)
        self._time_phase_(type(trainer.optimizer), "apply_", "optimizer, outside its kernels")

    def turn(self, warm: int, timed: int) -> dict[str, Any]:
        """Median seconds of each kernel and phase of a step; together they make up the step."""
        for number in range(warm):
            self.ours.step(number)
        phases: list[dict[str, float]] = []
        single: list[dict[str, Entry]] = []
        program: list[dict[str, Entry]] = []
        for number in range(timed):
            seconds, called = self.recorder.phases_of(partial(self.ours.step, 2 * number))
            phases.append(seconds)
            single.append(called)
            # Another batch: the rows of the same one would still be in the caches.
            program.append(self.recorder.program_of(partial(self.ours.step, 2 * number + 1)))
        kernels = _medians(program) + _medians(single)
        outside = {name: median(step[name] for step in phases) for name in phases[0]}
        outside[STEP] -= sum(value for name, value in outside.items() if name != STEP)
        outside[PROGRAM] -= sum(kernel["seconds"] for kernel in _medians(program))
        step_seconds = sum(kernel["seconds"] for kernel in kernels) + sum(outside.values())
        return {"step": step_seconds, "kernels": kernels, "outside": outside}

    def about(self) -> dict[str, Any]:
        return self.ours.about()

    def _time_phase_(self, owner: type, method: str, name: str) -> None:
        original, recorder = getattr(owner, method), self.recorder

        def timed(*args: Any, **options: Any) -> Any:
            with recorder.phase(name):
                return original(*args, **options)

        setattr(owner, method, timed)


def _medians(steps: list[dict[str, Entry]]) -> list[dict[str, Any]]:
    """Each kernel's figures in a step; it is called as often in all of them."""
    return [
        {"name": name, **vars(entry), "seconds": median(step[name].seconds for step in steps)}
        for name, entry in steps[0].items()
    ]
