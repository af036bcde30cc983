# SPDX-License-Identifier: Apache-2.0
"""Options that the benchmarks share.

Neither NumPy nor this project is imported here: a process must be confined to its cores before
anything counts them.
"""

import argparse
import os

from harness.configs import CONFIGS, LEARNING_RATES


def add_task_options(parser: argparse.ArgumentParser) -> None:
    """Model, batch, optimizer, threads, and the form of the result."""
    parser.add_argument("--config", choices=CONFIGS, default="kaggle")
    parser.add_argument("--batch", type=positive, default=2048, help="rows of a step")
    parser.add_argument("--optimizer", choices=LEARNING_RATES, default="sgd")
    parser.add_argument("--threads", type=_threads, default=available_threads())
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def available_threads() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0))


def positive(text: str) -> int:
    """A whole number of 1 or more."""
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text} is not 1 or more")
    return number


def _threads(text: str) -> int:
    number = positive(text)
    if number > available_threads():
        raise argparse.ArgumentTypeError(f"this process may use {available_threads()} cores")
    return number
