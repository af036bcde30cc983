# SPDX-License-Identifier: Apache-2.0
"""Time of one DLRM training step, next to PyTorch, FBGEMM and JAX on the same machine.

A step is forward, loss, backward and every update, from a batch in memory. All arms start from the
same weights and see the same batches in the same order. Each arm has a process of its own; they
take turns, and only one works at a time.

    python benchmarks/step.py --config kaggle --batch 2048
    python benchmarks/step.py --config mlperf --against torch --peer-python peers/bin/python
    python benchmarks/step.py --config mlperf_dcnv2 --against torch,torch_compile
    python benchmarks/step.py --precision bf16 --peer-python peers/bin/python
    python benchmarks/step.py --config small --against none --json
    python benchmarks/step.py --accumulate 2 --against none
    python benchmarks/step.py --config kaggle --against dropout   # our step, and it with dropout
    python benchmarks/step.py --target cuda --batch 8192          # as gpu.py step: see there
"""

import argparse
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any

from harness.batches import mean_unique
from harness.memory import available_bytes, needed_bytes
from harness.options import add_task_options, available_threads, positive
from harness.remote import ArmError, Worker
from harness.report import describe
from harness.result import milliseconds, summarize
from harness.rounds import Rounds, Score
from harness.task import Task

PEERS = (  # the last is ours
    *("torch", "torch_compile", "torch_bf16", "fbgemm", "fbgemm_half", "jax", "dropout"),
)
# Precision of our arm -> its default peers.
AGAINST = {"float32": ("torch", "fbgemm", "jax"), "bf16": ("torch", "torch_bf16", "fbgemm_half")}
LEAST_STEPS = 30
LEAST_BATCHES = 8
PROFILED_STEPS = 100
# Options for the CPU only, with their defaults.
CPU_ONLY = {
    "accumulate": 1,
    "against": None,
    "batches": 64,
    "patience": 30.0,
    "peer_python": sys.executable,
    "threads": available_threads(),
}


def main() -> int:
    """Measure, print, and return 0; or print the reason why not in one line and return 2."""
    options = _options()
    if options.target == "cuda":
        return _on_cuda(options)
    task = Task(
        options.config,
        options.batch,
        options.optimizer,
        options.threads,
        options.batches,
        options.precision,
        options.accumulate,
    )
    against = AGAINST[task.precision] if options.against is None else options.against
    arms = ["ours", *against]
    needed, available = needed_bytes(task, arms), available_bytes()
    if needed > available:
        return _refuse(
            f"{', '.join(arms)} need {needed / 1e9:.0f} GB together and {available / 1e9:.0f} GB "
            "are free: name fewer in --against"
        )
    try:
        result = _measure(task, arms, options)
    except ArmError as error:
        return _refuse(str(error))
    print(json.dumps(result) if options.json else describe(result))
    return 0


def _on_cuda(options: argparse.Namespace) -> int:
    """Time a GPU's steps with `gpu.py`, which has one process and one peer."""
    for name, default in CPU_ONLY.items():
        if getattr(options, name) != default:
            return _refuse(f"--{name.replace('_', '-')} is for the CPU: leave it out")
    import gpu  # imports TVM, which this process must not do before it starts the arms

    words = ["config", "batch", "optimizer", "precision", "steps"]
    return gpu.main(["step", *(f"--{word}={getattr(options, word)}" for word in words)])


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add_task_options(parser)
    parser.add_argument("--target", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--precision", choices=AGAINST, default="float32", help="of our arm")
    parser.add_argument("--accumulate", type=positive, default=1, help="parts of a batch, our arm")
    parser.add_argument("--against", type=_peers, help=f"{', '.join(PEERS)}, by commas; or none")
    parser.add_argument(
        "--batches", type=_batches, default=CPU_ONLY["batches"], help="number of different batches"
    )
    parser.add_argument("--steps", type=_steps, default=60, help="least measured steps of each arm")
    parser.add_argument(
        "--patience",
        type=float,
        default=CPU_ONLY["patience"],
        help="seconds to wait for a quiet machine",
    )
    parser.add_argument(
        "--peer-python", type=_program, default=sys.executable, help="interpreter of the peers"
    )
    return parser.parse_args()


def _measure(task: Task, arms: Sequence[str], options: argparse.Namespace) -> dict[str, Any]:
    """Run the rounds, then the profile.

    The cache of compiled programs starts as an empty folder: our arm compiles, the profile loads.
    """
    order = [*arms, "roofs", "numpy"]
    with tempfile.TemporaryDirectory() as cache:
        with ExitStack() as workers:
            # Peers first, so that a missing one fails before anything large is built.
            started = {
                arm: _start(arm, task, options, cache, workers)
                for arm in sorted(order, key=lambda arm: arm not in PEERS)
            }
            print("taking turns", file=sys.stderr)
            workers_in_order = [started[arm] for arm in order]
            rounds = Rounds(workers_in_order, task.threads, options.patience, _print_arm)
            rounds.play(options.steps)
        with ExitStack() as workers:
            profile = _start("profile", task, options, cache, workers)
            profiled = Rounds([profile], task.threads, rounds.patience).clean_turn(
                profile, max(options.steps, PROFILED_STEPS)
            )
    about = {arm: worker.about for arm, worker in started.items()}
    about["ours"]["cached_compile_s"] = profile.about["compile_s"]
    result = summarize(task, about, rounds, profiled.answer)
    return result | {"unique_rows": mean_unique(task.config, task.make_batches())}


def _print_arm(arm: str, score: Score) -> None:
    """What an arm took, as soon as it is known: a run that is cut off is not lost."""
    if "seconds" in score.turns[0].answer:
        found = milliseconds(score.samples("seconds"))
        text = "{median_ms:.2f} ms ({p10_ms:.2f} to {p90_ms:.2f})".format_map(found)
        clean = f"{len(score.clean)} of {len(score.turns)} turns undisturbed"
        print(f"{arm}: {text}, {clean}", file=sys.stderr, flush=True)


def _start(
    arm: str, task: Task, options: argparse.Namespace, cache: str, workers: ExitStack
) -> Worker:
    print(f"preparing {arm}", file=sys.stderr)
    python = options.peer_python if arm in PEERS else sys.executable
    worker = Worker(arm, task, python, cache)
    workers.callback(worker.close)
    return worker


def _steps(text: str) -> int:
    number = positive(text)
    if number < LEAST_STEPS:
        raise argparse.ArgumentTypeError(f"fewer than {LEAST_STEPS} steps have no p10 and p90")
    return number


def _batches(text: str) -> int:
    number = positive(text)
    if number < LEAST_BATCHES:
        raise argparse.ArgumentTypeError(f"fewer than {LEAST_BATCHES} batches stay in the caches")
    return number


def _peers(text: str) -> tuple[str, ...]:
    names = () if text == "none" else tuple(text.split(","))
    unknown = [name for name in names if name not in PEERS]
    if unknown:
        raise argparse.ArgumentTypeError(f"{unknown[0]!r} is not one of {', '.join(PEERS)}, none")
    return names


def _program(text: str) -> str:
    found = shutil.which(text)
    if found is None:
        raise argparse.ArgumentTypeError(f"{text} is not a program")
    return os.path.abspath(found)  # a worker has another working folder


def _refuse(message: str) -> int:
    print(f"step.py: {message}", file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main())
