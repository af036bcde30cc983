# SPDX-License-Identifier: Apache-2.0
"""Whether a CUDA device repeats its bits, and how far its weights are from a CPU's."""

from typing import Any

import numpy as np

from harness.ours import as_batch, build_trainer
from harness.task import Task

STEPS = 100


def measure_agreement(task: Task) -> dict[str, Any]:
    """Train twice on the device and once on the CPU; the same weights and batches."""
    programs: dict[str, Any] = {}
    first, again, host = (_trained(task, target, programs) for target in ("cuda", "cuda", "cpu"))
    same = all(np.array_equal(first[name], again[name]) for name in first)
    apart = {name: float(np.abs(first[name] - host[name]).max()) for name in first}
    worst = max(apart, key=lambda name: apart[name])
    return {
        "task": task.to_dict(),
        "steps": STEPS,
        "two_runs_have_the_same_bits": same,
        "largest_difference_from_cpu": apart[worst],
        "of": worst,
    }


def _trained(task: Task, target: str, programs: dict[str, Any]) -> dict[str, np.ndarray]:
    trainer = build_trainer(task.config, task.optimizer, target=target, precision=task.precision)
    trainer.program = programs.setdefault(target, trainer.program)  # compiled once
    batches = [as_batch(arrays) for arrays in task.make_batches()]
    for batch in trainer.ahead(batches[number % len(batches)] for number in range(STEPS)):
        trainer.step(batch)
    return trainer.state_dict()
