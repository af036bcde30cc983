# SPDX-License-Identifier: Apache-2.0
"""Whole steps on a CUDA device, next to PyTorch's, in turns in one process."""

import statistics
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from itertools import cycle
from typing import Any

from harness.gpu_timing import kernels_of, seconds_of, torch_on_gpu
from harness.ours import as_batch, build_trainer
from harness.task import Task

TURNS = 7
Step = Callable[[int], None]


def measure_step(task: Task, steps: int) -> dict[str, Any]:
    """Median milliseconds of each arm, and PyTorch's time over ours.

    "ours" has batches on the host, which are sent ahead of the step, as `fit` does; "waiting" sends
    each when it is its turn. PyTorch's batches lie on the device already.
    """
    with steps_of(task) as arms:
        turns: dict[str, list[float]] = {name: [] for name in arms}
        for _ in range(TURNS):
            for name, step in arms.items():
                turns[name].append(seconds_of(step, steps) * 1e3)
    medians = {name: statistics.median(values) for name, values in turns.items()}
    flops = task.config.matmul_flops(task.batch)
    return {
        "task": task.to_dict(),
        "median_ms": medians,
        "turns_ms": turns,
        "TFLOP_per_s": {name: flops / ms / 1e9 for name, ms in medians.items()},
        "torch_over_us": medians["torch"] / medians["ours"] if "torch" in medians else None,
    }


def measure_kernels(task: Task, steps: int) -> dict[str, Any]:
    """Microseconds and launches in a step of every kernel and copy, the longest first."""
    with steps_of(task) as arms:
        return {"task": task.to_dict()} | {
            name: kernels_of(step, steps) for name, step in arms.items()
        }


@contextmanager
def steps_of(task: Task) -> Iterator[dict[str, Step]]:
    """Every arm's step: ours with batches ahead and without, from one trainer, and PyTorch's."""
    trainer = build_trainer(task.config, task.optimizer, target="cuda", precision=task.precision)
    batches = [as_batch(arrays) for arrays in task.make_batches()]
    stream = trainer.prefetch(cycle(batches))

    def ahead(_number: int) -> None:
        trainer.step(next(stream))

    def waiting(number: int) -> None:
        trainer.step(batches[number % len(batches)])

    torch = _torch(task)
    with closing(stream):
        yield {"ours": ahead, "waiting": waiting} | ({} if torch is None else {"torch": torch})


def _torch(task: Task) -> Step | None:
    torch = torch_on_gpu()
    if torch is None:
        return None
    from harness.torch_arm import Torch, TorchHalf

    arm = (Torch if task.precision == "float32" else TorchHalf)(task, "cuda")

    def step(number: int) -> None:
        arm.step(number)
        torch.cuda.synchronize()

    return step
