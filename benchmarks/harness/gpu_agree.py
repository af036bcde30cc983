# SPDX-License-Identifier: Apache-2.0
"""Reproducibility of a CUDA device, and the distance of its weights from a CPU's.

Some formulas magnify the last bit: Adagrad's first step of a row is the sign of its gradient,
however small. So the CPU is measured against itself too, from weights whose last bits were changed
at random: a device that is no farther away than that has no error of its own.
"""

from typing import Any

import numpy as np

from harness.ours import as_batch, build_trainer
from harness.task import Task

STEPS = 100
WEIGHTS = (".weight", ".bias")  # how their names end; a slot's name goes on
Arrays = dict[str, np.ndarray]


def measure_agreement(task: Task) -> dict[str, Any]:
    """Train twice on the device and twice on the CPU; the same batches."""
    programs: dict[str, Any] = {}
    first, again = (_trained(task, "cuda", programs) for _ in range(2))
    host, nudged = (_trained(task, "cpu", programs, nudge) for nudge in (False, True))
    return {
        "task": task.to_dict(),
        "steps": STEPS,
        "two_runs_have_the_same_bits": all(np.array_equal(first[n], again[n]) for n in first),
        "from_cpu": _apart(first, host),
        "cpu_from_cpu_with_other_last_bits": _apart(nudged, host),
    }


def _apart(one: Arrays, other: Arrays) -> dict[str, Any]:
    """The largest difference and where it is, and quantiles over all numbers."""
    apart = {n: np.abs(array - other[n]).ravel() for n, array in one.items() if array.size}
    worst = max(apart, key=lambda name: apart[name].max())
    middle, most = np.quantile(np.concatenate(list(apart.values())), (0.5, 0.999))
    return {"largest": float(apart[worst].max()), "of": worst, "median": middle, "q999": most}


def _trained(task: Task, target: str, programs: dict[str, Any], nudge: bool = False) -> Arrays:
    trainer = build_trainer(task.config, task.optimizer, target=target, precision=task.precision)
    trainer.program = programs.setdefault(target, trainer.program)  # compiled once
    if nudge:
        state = trainer.state_dict()
        weights = {name: _nudged(array) for name, array in state.items() if name.endswith(WEIGHTS)}
        trainer.load_state_dict(state | weights)
    batches = [as_batch(arrays) for arrays in task.make_batches()]
    for batch in trainer.prefetch(batches[number % len(batches)] for number in range(STEPS)):
        trainer.step(batch)
    return trainer.state_dict()


def _nudged(array: np.ndarray) -> np.ndarray:
    """Each weight becomes its neighbour, above or below."""
    up = np.random.default_rng(0).random(array.shape) < 0.5
    return np.nextafter(array, np.where(up, np.inf, -np.inf).astype(array.dtype))
