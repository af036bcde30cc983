# SPDX-License-Identifier: Apache-2.0
"""Stages of a run, in the order of what they tell: a command each, and its part of the time left.

The rest of the suite comes last because it takes all the time there is. Figures are processes of
their own: after an illegal access CUDA refuses everything else in a process.
"""

import sys
from importlib.util import find_spec
from typing import NamedTuple

from tests.on_device.facts import ROOT

# Of `benchmarks/gpu.py`.
FIGURES = (
    "agree --config small --batch 512 --optimizer sgd",
    "agree --config small --batch 512 --optimizer adagrad",
    "agree --config small --batch 512 --optimizer sgd --precision bf16",
    "rows --width 128",
    "rows --width 16",
    "step --config kaggle --batch 8192 --precision bf16",
    "step --config mlperf --batch 65536 --precision bf16",
    "products --precision bf16",
    "sums --precision bf16",
    "flat --width 16",
    "plan",
    "step --config kaggle --batch 8192",
    "step --config mlperf --batch 65536 --steps 5",
    "products",
)
# What `tests.cuda.small_benchmark` makes of each measure.
SMALL_FIGURES = (
    "agree --config small --batch 8",
    "rows --width 4 --rows 50 --lookups 100",
    "step --config small --batch 8 --steps 2",
    "products --precision bf16",
    "sums --precision bf16",
    "flat --width 4",
    "plan",
    "kernels --config small --batch 8 --steps 2",
)


class Stage(NamedTuple):
    """A command that runs as a process for at most `share` of the time left."""

    name: str
    command: list[str]
    share: float = 1.0
    environment: tuple[tuple[str, str], ...] = ()
    why_not: str | None = None  # it cannot run here
    prints_json: bool = False


def stages(emulated: bool) -> list[Stage]:
    """Return what to run on a device, or what an emulator can run of it."""
    script = ["-m", "tests.cuda.small_benchmark"] if emulated else [f"{ROOT}/benchmarks/gpu.py"]
    needs_one = "needs a device: emulated it would take hours" if emulated else None
    hidden = (("CUDA_VISIBLE_DEVICES", ""),) if emulated else ()
    tests, part = (0.6, 0.5) if emulated else (0.4, 0.25)  # of the time left
    doctor = [sys.executable, "-m", "sparsetrain", "doctor", "--json"]
    return [
        Stage("doctor", doctor, 0.2, prints_json=True),
        Stage("tests/cuda", _pytest("tests/cuda"), tests, hidden),
        *(
            Stage(words, [sys.executable, *script, *words.split()], part, prints_json=True)
            for words in (SMALL_FIGURES if emulated else FIGURES)
        ),
        Stage(
            "other tests, with SPARSETRAIN_TEST_CUDA=device",
            _pytest("tests", "--ignore=tests/cuda"),
            environment=(("SPARSETRAIN_TEST_CUDA", "device"),),
            why_not=needs_one,
        ),
    ]


def _pytest(*words: str) -> list[str]:
    """Files go to a worker for each core where pytest-xdist is installed; nvcc takes most time."""
    split = "--numprocesses logical --maxprocesses 12 --dist loadfile --no-loadscope-reorder"
    workers = split.split() if find_spec("xdist") else []
    plugins = ["-p", "tests.on_device.lines", "-p", "no:cacheprovider"]
    return [sys.executable, "-m", "pytest", "-q", *plugins, *workers, *words]
