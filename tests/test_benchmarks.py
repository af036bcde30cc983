# SPDX-License-Identifier: Apache-2.0
"""The benchmarks run, and print figures that fit together; how large they are is not judged."""

import importlib
import json
import re
import subprocess
import sys
from contextlib import redirect_stderr, redirect_stdout
from importlib.util import find_spec
from io import StringIO
from pathlib import Path

import pytest

from sparsetrain.backends.cuda import device as gpu
from sparsetrain.compiler.precision import lacks
from sparsetrain.runtime.host import host_target

FOLDER = Path(__file__).parents[1] / "benchmarks"
# Peers of a precision, and what is imported.
PEERS = {
    "float32": {"torch": "torch", "fbgemm": "fbgemm_gpu", "jax": "jax"},
    "bf16": {"torch": "torch", "torch_bf16": "torch", "fbgemm_half": "fbgemm_gpu"},
}
QUICK = ["--config", "small", "--batch", "64"]


def _run(script: str, *options: str) -> subprocess.CompletedProcess:
    command = [sys.executable, str(FOLDER / script), *options]
    return subprocess.run(command, capture_output=True, text=True, timeout=120)


@pytest.fixture
def refused(capsys, monkeypatch):
    """What `step.py` says of options that it refuses, in this process."""

    def run(*options: str) -> str:
        monkeypatch.syspath_prepend(str(FOLDER))
        monkeypatch.setattr("sys.argv", ["step.py", *QUICK, *options])
        try:
            code = importlib.import_module("step").main()
        except SystemExit as ended:
            code = ended.code
        assert code == 2
        return capsys.readouterr().err

    return run


@pytest.mark.slow
def test_the_gpu_benchmark_says_why_it_cannot_run():
    if gpu.unavailable_reason() is None:
        pytest.skip("it can, on the GPU that the tests are to use")
    done = _run("gpu.py", "rows")
    assert (done.returncode, done.stderr) == (2, f"gpu.py: {gpu.unavailable_reason()}\n")


def test_what_is_left_out_of_a_step_is_there(monkeypatch):
    monkeypatch.syspath_prepend(str(FOLDER))
    variants = importlib.import_module("ablate").VARIANTS.values()
    owned = [variant[:2] for variant in variants if variant is not None]
    assert owned and all(hasattr(owner, name) for owner, name in owned)


# How often and how long something is measured: a figure rests on that, a test does not.
SMALLER = {
    "harness.rounds": {"ROUNDS": 2, "LEAST_TURN_SECONDS": 0.01, "PILOT_STEPS": 3},
    "step": {"PROFILED_STEPS": 10},
}


@pytest.fixture(scope="module")
def step():
    """The result of a short run without peers."""
    options = ["--against", "none", "--steps", "30", "--patience", "0", "--json"]
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(FOLDER))
        patch.setattr("sys.argv", ["step.py", *QUICK, *options])
        for module, figures in SMALLER.items():
            for name, value in figures.items():
                patch.setattr(importlib.import_module(module), name, value)
        printed, told = StringIO(), StringIO()
        with redirect_stdout(printed), redirect_stderr(told):
            assert importlib.import_module("step").main() == 0
    return json.loads(printed.getvalue()) | {"told": told.getvalue()}


@pytest.mark.slow
def test_a_step_has_its_quantiles_in_order_and_rates_that_follow_from_them(step):
    ours = step["arms"]["ours"]
    assert 0 < ours["p10_ms"] <= ours["median_ms"] <= ours["p90_ms"]
    assert ours["rows_per_s"] == pytest.approx(64e3 / ours["median_ms"])
    assert ours["gflops"] == pytest.approx(step["matmul_gflop"] * 1e3 / ours["median_ms"])
    assert ours["steps"] >= 30
    assert 0 < ours["loss"] < 1


@pytest.mark.slow
def test_an_arm_is_printed_as_soon_as_its_turns_are_over(step):
    assert re.search(r"^ours: [\d.]+ ms \([\d.]+ to [\d.]+\), \d of 2 turns", step["told"], re.M)


@pytest.mark.slow
def test_the_roofs_are_measured_in_the_same_run(step):
    roofs = step["roofs"]
    assert roofs["gemm_gflops"] == max(roofs["gemm_gflops_ours"], roofs["gemm_gflops_numpy"]) > 0
    assert roofs["gather_gb_per_s"] > 0


@pytest.mark.slow
def test_the_profile_accounts_for_the_whole_step_and_for_every_product(step):
    profile = step["profile"]
    kernels = sum(kernel["ms"] for kernel in profile["kernels"])
    outside = sum(profile["outside_kernels_ms"].values())
    assert kernels + outside == pytest.approx(profile["step_ms"])
    flops = profile["matmul_ms"] * profile["matmul_gflops"] / 1e3
    assert flops == pytest.approx(step["matmul_gflop"], rel=1e-6)


@pytest.mark.slow
def test_the_profile_sees_the_kernels_outside_the_compiled_program(step):
    names = {kernel["name"] for kernel in step["profile"]["kernels"]}
    assert any("update" in name or "row_kernel" in name for name in names), names


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["--against", "tensorflow"], "tensorflow"),
        (["--steps", "3"], "fewer than 30"),
        (["--batches", "2"], "fewer than 8"),
        (["--threads", "100000"], "this process may use"),
        (["--batch", "0"], "0 is not 1 or more"),
        (["--peer-python", "no/such/python"], "no/such/python is not a program"),
    ],
)
def test_an_option_out_of_range_is_refused_with_the_reason(refused, options, told):
    assert told in refused(*options)


def test_a_peer_that_is_not_installed_is_named_with_the_ways_out(refused, tmp_path):
    without_jax = (
        "import runpy, sys; sys.modules['jax'] = None; "
        "runpy.run_module('harness.worker', run_name='__main__')"
    )
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nexec {sys.executable} -c "{without_jax}"\n')
    python.chmod(0o755)
    said = refused("--against", "jax", "--peer-python", str(python))
    assert f"jax: {python} has no jax" in said
    assert "--peer-python" in said and "Traceback" not in said


NO_PAIRS = lacks("bfloat16", host_target())


@pytest.mark.skipif(NO_PAIRS is None, reason="the CPU has AVX512_BF16")
def test_a_precision_that_the_cpu_lacks_is_refused_in_one_line(refused):
    said = refused("--precision", "bf16", "--against", "none")
    assert said.splitlines()[-1] == (
        f"step.py: ours: precision: {NO_PAIRS}; use precision='float32'"
    )


in_bf16 = pytest.mark.skipif(NO_PAIRS is not None, reason="the CPU has no AVX512_BF16")


@pytest.mark.peers
@pytest.mark.parametrize(
    ("config", "precision", "error"),
    [
        ("small", "float32", 1e-4),
        pytest.param("small", "bf16", 1e-2, marks=in_bf16),
        ("small_dcnv2", "float32", 1e-4),
    ],
)
def test_every_arm_computes_the_same_loss(config, precision, error):
    found = [name for name, module in PEERS[precision].items() if find_spec(module)]
    if not found:
        pytest.skip("none of the peers is installed")
    options = ["--against", ",".join(found), "--steps", "30", "--patience", "0", "--json"]
    done = _run("step.py", *QUICK, "--config", config, "--precision", precision, *options)
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    losses = {name: arm["loss"] for name, arm in result["arms"].items()}
    assert losses == pytest.approx(dict.fromkeys(losses, losses["ours"]), rel=error)
    assert set(result["ratios"]) == set(found)


@pytest.mark.slow
def test_an_epoch_is_compared_with_its_step_and_its_loader():
    done = _run("epoch.py", *QUICK, "--rows", "2000", "--json")
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert result["rows"] == 2000
    assert result["share_of_step"] == result["fit_rows_per_s"] / result["step_rows_per_s"] > 0
    assert result["loader_rows_per_s"] > 0


@pytest.mark.slow
def test_tables_on_disk_are_compared_with_the_disk(tmp_path):
    sizes = ["--rows", "26000", "--cache-rows", "5000", "--batch", "64"]
    options = ["--warm", "5", "--steps", "5", "--turns", "2"]
    done = _run("on_disk.py", str(tmp_path), *sizes, *options)
    assert done.returncode == 0, done.stderr
    arms = re.findall(r"^(\w+) +[\d,]+ rows a second", done.stdout, re.MULTILINE)
    assert arms == ["disk", "memory"]


@pytest.mark.slow
def test_an_epoch_over_a_missing_file_says_so_in_one_line(tmp_path):
    done = _run("epoch.py", *QUICK, "--data", str(tmp_path / "none.parquet"))
    assert done.returncode == 2
    assert "none.parquet" in done.stderr and "Traceback" not in done.stderr
