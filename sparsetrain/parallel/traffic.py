# SPDX-License-Identifier: Apache-2.0
"""Profile of a rank's messages in steps, by purpose: bytes sent and seconds waited."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from statistics import median
from typing import Any

from sparsetrain.parallel.comm import Comm
from sparsetrain.runtime.threads import num_threads
from sparsetrain.training.profile import Entry, StepProfile, kernel_times
from sparsetrain.training.profile.result import longest_first


class TrafficRecorder:
    """A `Trainer.step_hook` that runs steps and records their messages."""

    def __init__(self, comm: Comm) -> None:
        self._comm = comm
        self._steps: list[dict[str, Entry]] = []
        self._seconds: list[float] = []
        self._rows: list[int] = []

    def __call__(self, step: Callable[[], Any], batch: Any) -> Any:
        """Run a step on a batch; return its loss."""
        self._comm.traffic.clear()
        began = time.perf_counter()
        loss = step()
        self._seconds.append(time.perf_counter() - began)
        self._rows.append(len(batch))
        self._steps.append({what: Entry(*sums) for what, sums in self._comm.traffic.items()})
        return loss

    def result(self) -> StepProfile | None:
        """Return medians over the steps, except for the first, which compiles."""
        steps = self._steps[1:]
        if not steps:
            return None
        times = [
            replace(each, name=f"{each.name}, {each.bytes / 1e3:,.1f} KB sent")
            for each in kernel_times(steps)
        ]
        return StepProfile(
            rows=int(median(self._rows)),
            steps=len(steps),
            threads=num_threads(),
            seconds=median(self._seconds[1:]),
            kernels=longest_first(times),
        )
