# SPDX-License-Identifier: Apache-2.0
"""Recording some steps of a training: by `Trainer.profile`, or within a run of `Trainer.fit`.

Every recorded step is a step like any other, with the same bits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from statistics import median
from typing import Any

from sparsetrain import runtime
from sparsetrain.profile.recorder import Entry, Recorder
from sparsetrain.profile.result import StepProfile, kernel_times, longest_first

WARM, RECORDED = 5, 40  # steps; half of the recorded ones are for the kernels of programs

# Gives the rows of each storage of tables -> how many of them the step looks up.
Lookups = Callable[[], Mapping[int, int]]


class Watch:
    """Lets the first `warm` steps pass and records those after them.

    Parameters
    ----------
    machines : callable
        Gives the virtual machines that a step will use.
    warm, steps : int
        How many steps pass, and how many are recorded then; at least 2.
    """

    def __init__(
        self, machines: Callable[[], Iterable[Any]], warm: int = WARM, steps: int = RECORDED
    ) -> None:
        self._machines, self._warm, self._left = machines, warm, max(2, steps)
        self._rows = 0
        self._seconds: list[float] = []
        self._single: list[dict[str, Entry]] = []
        self._program: list[dict[str, Entry]] = []

    def step(self, run: Callable[[], Any], rows: int, lookups: Lookups) -> Any:
        """Call `run`, which trains on `rows` rows, and return what it returns."""
        if self._warm:
            self._warm -= 1
            return run()
        # A last, smaller batch would mix its times with those of others.
        if not self._left or (self._rows and rows != self._rows):
            return run()
        self._rows, self._left = rows, self._left - 1
        return self._record(run, Recorder(lookups()))

    def _record(self, run: Callable[[], Any], recorder: Recorder) -> Any:
        results: list[Any] = []

        def keep() -> None:
            results.append(run())

        if len(self._seconds) > len(self._program):
            self._program.append(recorder.program_of(keep, self._machines()))
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
