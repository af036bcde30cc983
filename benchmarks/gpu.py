# SPDX-License-Identifier: Apache-2.0
"""Correctness and speed on a CUDA device: rows, products, whole steps.

    python benchmarks/gpu.py agree                       # the same bits twice, the CPU's weights
    python benchmarks/gpu.py rows --width 128            # lookup, update: shares of a copy's rate
    python benchmarks/gpu.py flat --width 16             # updates against the rows of the table
    python benchmarks/gpu.py plan                        # sorting on the device and on the host
    python benchmarks/gpu.py products --precision bf16   # TFLOP/s of layers, beside PyTorch
    python benchmarks/gpu.py sums --precision bf16       # of columns, beside a copy's rate
    python benchmarks/gpu.py step --config kaggle --batch 8192 --precision bf16
    python benchmarks/gpu.py kernels --config kaggle --batch 8192        # where a step's time goes

PyTorch is measured beside where it is installed and sees the device. Without a device it says why
and returns 2. `python -m tests.on_device` takes all the figures, most telling first.
"""

import argparse
import json
import sys
from collections.abc import Callable
from typing import Any

import tvm
from harness import gpu_agree, gpu_products, gpu_rows, gpu_step, gpu_sums
from harness.configs import CONFIGS, LEARNING_RATES
from harness.options import available_threads, positive
from harness.task import Task

from sparsetrain.backends.cuda import device as gpu

BATCHES = 8
PLAN_ROWS = 33_762_577  # of Criteo Kaggle's tables together
PLAN_SIZES = (3_328, 13_312, 53_248, 212_992, 1_703_936)
PRECISIONS = ("float32", "bf16")


def main(arguments: list[str] | None = None) -> int:
    """Measure, print one JSON object, return 0; or say what is missing and return 2."""
    options = _options(arguments)
    why_not = gpu.unavailable_reason()
    if why_not is not None:
        print(f"gpu.py: {why_not}", file=sys.stderr)
        return 2
    device = {"device": tvm.cuda().device_name, "tvm": tvm.__version__}
    print(json.dumps(device | MEASURES[options.measure](options), indent=2))
    return 0


def _options(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("measure", choices=MEASURES)
    parser.add_argument("--config", choices=CONFIGS, default="kaggle")
    parser.add_argument("--batch", type=positive, default=8192)
    parser.add_argument("--optimizer", choices=LEARNING_RATES, default="adagrad")
    parser.add_argument("--precision", choices=PRECISIONS, default="float32")
    parser.add_argument("--steps", type=positive, default=30, help="of each of the turns")
    parser.add_argument("--width", type=positive, default=128)
    parser.add_argument("--rows", type=positive, default=10_000_000, help="of the table")
    parser.add_argument("--lookups", type=positive, default=1_703_936, help="65,536 x 26")
    return parser.parse_args(arguments)


def _task(options: argparse.Namespace) -> Task:
    return Task(
        options.config,
        options.batch,
        options.optimizer,
        available_threads(),
        BATCHES,
        options.precision,
    )


MEASURES: dict[str, Callable[[argparse.Namespace], dict[str, Any]]] = {
    "agree": lambda o: gpu_agree.measure_agreement(_task(o)),
    "rows": lambda o: gpu_rows.measure_rows(o.rows, o.width, o.lookups),
    "flat": lambda o: gpu_rows.measure_flat(o.width),
    "plan": lambda o: gpu_rows.measure_plan(PLAN_ROWS, PLAN_SIZES),
    "products": lambda o: gpu_products.measure_products(o.precision),
    "sums": lambda o: gpu_sums.measure_sums(o.precision),
    "step": lambda o: gpu_step.measure_step(_task(o), o.steps),
    "kernels": lambda o: gpu_step.measure_kernels(_task(o), o.steps),
}


if __name__ == "__main__":
    sys.exit(main())
