# SPDX-License-Identifier: Apache-2.0
"""`benchmarks/gpu.py`, all of it on a small scale: figures are there, their size means nothing."""

import importlib
import json

import pytest

from tests.cuda.small_benchmark import FOLDER, shrink
from tests.on_device.stages import FIGURES, SMALL_FIGURES

# What is measured -> what is found.
MEASURES = {
    "agree --config small --batch 8": {
        "two_runs_have_the_same_bits",
        "from_cpu",
        "cpu_from_cpu_with_other_last_bits",
    },
    "rows --width 4 --rows 50 --lookups 100": {"share_of_copy", "GB_per_s", "unique", "kernels"},
    "flat --width 4": {"update_ms", "spread", "kernels"},
    "plan": {"plan_ms", "rows", "kernels"},
    "products --precision bf16": {"TFLOP_per_s"},
    "sums --precision bf16": {"precision", "sums"},
    "kernels --config small --batch 8 --steps 2": {"ours", "waiting"},
    "step --config small --batch 8 --steps 2": {"median_ms", "TFLOP_per_s", "torch_over_us"},
}


@pytest.fixture
def script(cuda, monkeypatch):
    monkeypatch.syspath_prepend(str(FOLDER))
    share_programs(monkeypatch)
    return shrink(monkeypatch.setattr)


def share_programs(monkeypatch):
    """Compile a model once for all measurements of it."""
    build, programs = importlib.import_module("harness.ours").build_trainer, {}

    def shared(*model, target, precision):
        trainer = build(*model, target=target, precision=precision)
        trainer.program = programs.setdefault((target, precision), trainer.program)
        return trainer

    for module in ("harness.gpu_agree", "harness.gpu_step"):
        monkeypatch.setattr(importlib.import_module(module), "build_trainer", shared)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Sparse invariant checks")  # PyTorch's, where it is measured
def test_every_measure_prints_its_figures(script, capsys):
    for words, names in MEASURES.items():
        assert script.main(words.split()) == 0
        found = json.loads(capsys.readouterr().out)
        assert names <= found.keys(), found
        if words.startswith("agree"):
            assert found["two_runs_have_the_same_bits"]
            assert found["from_cpu"]["largest"] < 1e-4


def test_a_run_on_a_device_takes_figures_that_there_are(script):
    assert MEASURES.keys() == set(SMALL_FIGURES)
    for words in FIGURES:
        assert script._options(words.split()).measure in script.MEASURES


def test_the_step_benchmark_runs_this_script_for_cuda(script, monkeypatch, capsys):
    asked = []
    monkeypatch.setattr(script, "main", lambda words: asked.append(words[0]) or 0)
    step = importlib.import_module("step")
    options = ["--config", "small", "--batch", "8", "--steps", "30"]
    monkeypatch.setattr("sys.argv", ["step.py", "--target", "cuda", *options])
    assert step.main() == 0
    assert asked == ["step"]
