# SPDX-License-Identifier: Apache-2.0
"""A process that holds one arm and works only when told: ``python -m harness.worker``.

Requests and replies are JSON, one a line, on standard input and output; whatever a library prints
goes to standard error. The process confines itself to as many cores as the task has threads before
it imports anything that counts them. It ends when its input does.
"""

import importlib
import json
import os
import sys
import time
from typing import Any

# Name -> (module, class).
ARMS = {
    "ours": ("ours", "Ours"),
    "dropout": ("ours", "OursWithDropout"),
    "torch": ("torch_arm", "Torch"),
    "torch_compile": ("torch_arm", "TorchCompiled"),
    "torch_bf16": ("torch_arm", "TorchHalf"),
    "fbgemm": ("fbgemm_arm", "Fbgemm"),
    "fbgemm_half": ("fbgemm_arm", "FbgemmHalf"),
    "jax": ("jax_arm", "Jax"),
    "roofs": ("roofs", "OurRoofs"),
    "numpy": ("numpy_roof", "NumpyRoof"),
    "profile": ("profile", "Profile"),
}


def main() -> None:
    """Build the arm that the first line asks for, then answer the lines that follow."""
    replies = os.fdopen(os.dup(sys.stdout.fileno()), "w", buffering=1)
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    order = json.loads(sys.stdin.readline())
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: order["task"]["threads"]])
    from harness.task import Refused

    try:
        runner = _Runner(_build(order))
    except ModuleNotFoundError as error:
        replies.write(json.dumps({"missing": error.name}) + "\n")
        return
    except Refused as error:
        replies.write(json.dumps({"refused": str(error)}) + "\n")
        return
    replies.write(json.dumps(runner.arm.about()) + "\n")
    for line in sys.stdin:
        replies.write(json.dumps(runner.turn(**json.loads(line))) + "\n")


def _build(order: dict[str, Any]) -> Any:
    from harness.task import Task

    module, name = ARMS[order["arm"]]
    return getattr(importlib.import_module(f"harness.{module}"), name)(Task(**order["task"]))


class _Runner:
    """Gives an arm its turns; the batches go on where the last turn ended."""

    def __init__(self, arm: Any) -> None:
        self.arm = arm
        self.steps = 0

    def turn(self, warm: int, timed: int) -> dict[str, Any]:
        if hasattr(self.arm, "turn"):
            return self.arm.turn(warm, timed)
        seconds = []
        for number in range(self.steps, self.steps + warm + timed):
            began = time.perf_counter()
            self.arm.step(number)
            seconds.append(time.perf_counter() - began)
        self.steps += warm + timed
        return {"seconds": seconds[warm:], "steps": self.steps, "loss": float(self.arm.loss)}


if __name__ == "__main__":
    main()
