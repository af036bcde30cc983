# SPDX-License-Identifier: Apache-2.0
"""A step, a lookup and a row update on a CUDA device, beside its copying rate and PyTorch.

    python benchmarks/gpu.py step --config kaggle --batch 8192
    python benchmarks/gpu.py rows --width 128 --lookups 1703936
    python benchmarks/gpu.py flat --width 16

`step`: whole steps of both libraries in one process by turns, with the same weights and batches;
the ratio of medians. PyTorch's batches lie on the device already, ours are copied in every step.
`rows`: bytes that must move over the time they take, as a share of what a copy of a gigabyte
reaches in the same run. `flat`: row updates against the rows of the table.
Without a device it says why and returns 2.
"""

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import tvm
from harness.configs import CONFIGS, LEARNING_RATES
from harness.options import positive
from harness.task import Task

import sparsetrain as st
from sparsetrain import runtime
from sparsetrain.embedding.cuda_kernels import lookup_kernel
from sparsetrain.runtime import gpu
from sparsetrain.sparse_tensor import RowSparse

TURNS = 7
COPIED = 2**30  # bytes
FLAT_ROWS = (10**5, 10**6, 10**7, 10**8)


def main() -> int:
    """Measure, print one JSON object, return 0; or say what is missing and return 2."""
    options = _options()
    why_not = gpu.problem()
    if why_not is not None:
        print(f"gpu.py: {why_not}", file=sys.stderr)
        return 2
    result = {"device": tvm.cuda().device_name, **MEASURES[options.measure](options)}
    print(json.dumps(result, indent=2))
    return 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("measure", choices=MEASURES)
    parser.add_argument("--config", choices=CONFIGS, default="kaggle")
    parser.add_argument("--batch", type=positive, default=8192)
    parser.add_argument("--optimizer", choices=LEARNING_RATES, default="adagrad")
    parser.add_argument("--steps", type=positive, default=100, help="of each turn")
    parser.add_argument("--width", type=positive, default=128)
    parser.add_argument("--rows", type=positive, default=10_000_000, help="of the table")
    parser.add_argument("--lookups", type=positive, default=1_703_936, help="65,536 x 26")
    return parser.parse_args()


# --- Whole steps --------------------------------------------------------------------------------


def measure_step(options: argparse.Namespace) -> dict[str, Any]:
    """Median milliseconds of ours and of PyTorch's, if it is installed and sees the device."""
    task = Task(options.config, options.batch, options.optimizer, 1, 8)
    arms = {"ours": _our_step(task), "torch": _torch_step(task)}
    present = {name: step for name, step in arms.items() if step is not None}
    turns: dict[str, list[float]] = {name: [] for name in present}
    for _ in range(TURNS):
        for name, step in present.items():
            turns[name].append(_seconds(step, options.steps) * 1e3)
    medians = {name: statistics.median(values) for name, values in turns.items()}
    ratio = medians["torch"] / medians["ours"] if "torch" in medians else None
    return {"task": task.to_dict(), "median_ms": medians, "turns_ms": turns, "torch_over_us": ratio}


def _our_step(task: Task) -> Callable[[int], None]:
    from harness.ours import as_batch, build_trainer

    trainer = build_trainer(task.config, task.optimizer, target="cuda")
    batches = [as_batch(arrays) for arrays in task.make_batches()]

    def step(number: int) -> None:
        trainer.step(batches[number % len(batches)])

    return step


def _torch_step(task: Task) -> Callable[[int], None] | None:
    try:
        import torch
        from harness.torch_arm import Torch
    except ModuleNotFoundError:
        return None
    if not torch.cuda.is_available():
        return None
    arm = Torch(task, "cuda")

    def step(number: int) -> None:
        arm.step(number)
        torch.cuda.synchronize()

    return step


# --- Rows ---------------------------------------------------------------------------------------


def measure_rows(options: argparse.Namespace) -> dict[str, Any]:
    """Lookup and row update as shares of the copying rate."""
    copying = _copying_rate()
    lookup = _lookup_rate(options.rows, options.width, options.lookups)
    seconds, unique = _update_seconds(options.rows, options.width, options.lookups)
    # Values in; weight and slot of each touched row in and out.
    moved = 4 * options.width * (options.lookups + 4 * unique)
    rates = {"copy": copying, "lookup": lookup, "update": moved / seconds}
    shares = {name: rate / copying for name, rate in rates.items()}
    return {"width": options.width, "GB_per_s": _scaled(rates, 1e-9), "share_of_copy": shares}


def measure_flat(options: argparse.Namespace) -> dict[str, Any]:
    """Milliseconds of an update of the same number of rows of ever larger tables."""
    lookups = min(options.lookups, 53_248)
    times = {rows: _update_seconds(rows, options.width, lookups)[0] for rows in FLAT_ROWS}
    spread = max(times.values()) / min(times.values()) - 1
    return {"width": options.width, "update_ms": _scaled(times, 1e3), "spread": spread}


def _copying_rate() -> float:
    source, target = (_on_device(np.zeros(COPIED // 4, np.float32)) for _ in range(2))
    return 2 * COPIED / _seconds(lambda _: runtime.copy_(target, source), 20)


def _lookup_rate(rows: int, width: int, lookups: int) -> float:
    kernel = runtime.compile_kernel(lookup_kernel(width, "float32", "int32"), gpu.target())
    rng = np.random.default_rng(0)
    table = _on_device(np.zeros((rows, width), np.float32))
    ids = [_on_device(rng.integers(0, rows, lookups).astype(np.int32)) for _ in range(4)]
    out = _on_device(np.zeros((lookups, width), np.float32))
    seconds = _seconds(lambda number: kernel(table, ids[number % 4], out), 20)
    return lookups * (4 + 2 * 4 * width) / seconds


def _update_seconds(rows: int, width: int, lookups: int) -> tuple[float, int]:
    """Sort, sums and Adagrad's update of random rows; the wait for their number is included."""
    rng = np.random.default_rng(0)
    params = {"table": _on_device(np.zeros((rows, width), np.float32))}
    optimizer = st.optim.adagrad(0.01)
    state = optimizer.init(params)
    values = _on_device(rng.standard_normal((lookups, width), dtype=np.float32))
    indices = [rng.integers(0, rows, lookups).astype(np.int32) for _ in range(4)]
    gradients = [RowSparse(_on_device(index), values, rows) for index in indices]
    seconds = _seconds(
        lambda number: optimizer.apply_(params, {"table": gradients[number % 4]}, state), 20
    )
    return seconds, len(np.unique(indices[0]))


def _seconds(run: Callable[[int], Any], count: int) -> float:
    """Of one call, the mean of `count` after a few to warm up."""
    for number in range(3):
        run(number)
    tvm.cuda().sync()
    began = time.perf_counter()
    for number in range(count):
        run(number)
    tvm.cuda().sync()
    return (time.perf_counter() - began) / count


def _on_device(array: np.ndarray) -> Any:
    return runtime.moved(runtime.as_tensor(array), tvm.cuda(), "the benchmark's arrays")


def _scaled(figures: dict[Any, float], factor: float) -> dict[Any, float]:
    return {name: value * factor for name, value in figures.items()}


MEASURES = {"step": measure_step, "rows": measure_rows, "flat": measure_flat}


if __name__ == "__main__":
    sys.exit(main())
