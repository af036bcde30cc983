# SPDX-License-Identifier: Apache-2.0
"""`benchmarks/gpu.py`, all of it on a small scale: figures are there, their size means nothing."""

import importlib
import json

import pytest

from tests.cuda.small_benchmark import FOLDER, shrink

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
def test_all_measures_everything_and_goes_on_after_a_failure(script, monkeypatch, tmp_path, capsys):
    words = [name.split() for name in ["rows --rows 1", *MEASURES]]
    measures = {**script.MEASURES, "rows": fails_for_one_row(script.MEASURES["rows"])}
    monkeypatch.setattr(script, "MEASURES", measures)
    monkeypatch.setattr(script, "_everything", lambda: iter(words))
    out = tmp_path / "gpu.json"
    assert script.main(["all", "--out", str(out)]) == 0
    found = json.loads(out.read_text())
    first, *rest = found.values()
    assert first["failed"] == "RuntimeError: no such luck"
    for result, names in zip(rest, MEASURES.values(), strict=True):
        assert names <= result.keys(), result
        assert result["seconds"] > 0
    assert found["agree --config small --batch 8"]["two_runs_have_the_same_bits"]
    assert found["agree --config small --batch 8"]["from_cpu"]["largest"] < 1e-4
    printed = json.loads(capsys.readouterr().out)
    assert {name: printed[name] for name in found} == found


def fails_for_one_row(measure):
    def measured(options):
        if options.rows == 1:
            raise RuntimeError("no such luck")
        return measure(options)

    return measured


def test_what_does_not_fit_into_the_time_is_named(script, monkeypatch):
    monkeypatch.setattr(script, "_everything", lambda: iter([["plan"], ["flat"]]))
    times = iter([0.0, 0.0, 0.0, 1.0, 1e9])
    monkeypatch.setattr(script.time, "monotonic", lambda: next(times))
    options = script._options(["all", "--seconds", "10"])
    assert script._all(options)["flat"] == {"left_out": "10 s were over"}


def test_what_all_measures_are_commands_of_the_script(script):
    for words in script._everything():
        assert script._options(words).measure in script.MEASURES


def test_the_step_benchmark_runs_this_script_for_cuda(script, monkeypatch, capsys):
    asked = []
    monkeypatch.setattr(script, "main", lambda words: asked.append(words[0]) or 0)
    step = importlib.import_module("step")
    options = ["--config", "small", "--batch", "8", "--steps", "30"]
    monkeypatch.setattr("sys.argv", ["step.py", "--target", "cuda", *options])
    assert step.main() == 0
    assert asked == ["step"]
