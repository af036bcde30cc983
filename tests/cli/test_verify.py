# SPDX-License-Identifier: Apache-2.0
"""`sparsetrain verify` as people call it, and that each of its checks can fail."""

import json
import os
from pathlib import Path

import pyarrow.parquet as pq
import pytest

import sparsetrain as st
from sparsetrain.backends.cuda import device
from sparsetrain.cli import main
from sparsetrain.verify.checks import CHECKS
from tests.helpers import slow_except

pytestmark = pytest.mark.cpu("what is verified is the CPU; CUDA is a check of its own")
SAMPLE = os.environ.get("SPARSETRAIN_SAMPLE_DATA", "")


@pytest.fixture(autouse=True)
def _as_in_the_process_that_is_killed(monkeypatch):
    """Small tables are updated densely, which notes other steps in the slot `last`."""
    monkeypatch.setattr("sparsetrain.backends.cpu.Cpu.most_weights_dense", 2**17)


@pytest.mark.slow
def test_every_check_passes_here_and_the_certificate_says_what_was_found(tmp_path, capsys):
    out = tmp_path / "certificate.json"
    assert main(["verify", "--out", str(out), "--json"]) == 0
    written = json.loads(out.read_text())
    assert written == json.loads(capsys.readouterr().out.splitlines()[-1])
    assert written["ok"] and written["checks"].keys() == CHECKS.keys()
    assert {"date", "machine", "sparsetrain"} <= written.keys()
    for check in written["checks"].values():
        assert "skipped" in check or check["found"] <= check["bound"]


# The others compile more, or start a process.
QUICK = ("gradients", "duplicates")


@pytest.mark.parametrize("name", slow_except(QUICK, [name for name in CHECKS if name != "cuda"]))
def test_a_check_finds_its_fault_and_is_named(name, capsys):
    assert main(["verify", "--inject", name]) == 5
    assert f"verify: FAILED: {name}" in capsys.readouterr().err


@pytest.mark.skipif(device.unavailable_reason() is None, reason="there is a device")
def test_a_fault_that_cannot_be_looked_for_is_an_error(capsys):
    assert main(["verify", "--inject", "cuda"]) == 2
    assert "--inject cuda: no CUDA device" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["--run", "here"], "--run and --data need each other"),
        (["--data", "here"], "--run and --data need each other"),
        (["--run", "here", "--data", "nowhere"], "--data nowhere: is not a file"),
        (["--inject", "luck"], "--inject luck: the checks are gradients, "),
    ],
)
def test_wrong_options_are_refused_at_once(options, told, capsys):
    assert main(["verify", *options]) == 2
    assert told in capsys.readouterr().err


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run of Criteo's sample where there is one, else of synthetic rows, and its data."""
    folder = tmp_path_factory.mktemp("verified")
    data, sample = folder / "rows.parquet", Path(SAMPLE) / "criteo_kaggle_train.parquet"
    if SAMPLE and sample.exists():
        pq.write_table(pq.read_table(sample).slice(0, 3000), data)
    else:
        st.data.SyntheticCriteo(1).write(data, 3000, chunk_rows=3000)
    settings = ["--set", "model.dropout=0.1", "--set", "model.dim=8"]
    settings += ["--set", "model.bottom=16", "--set", "model.top=16"]
    assert main(["train", str(data), "--out", str(folder / "run"), *settings]) == 0
    return folder / "run", data


def test_a_run_is_verified_on_its_own_rows(run, tmp_path, capsys):
    folder, data = run
    out = tmp_path / "certificate.json"
    options = ["--run", str(folder), "--data", str(data), "--out", str(out)]
    assert main(["verify", *options]) == 0
    assert "FAILED" not in capsys.readouterr().out
    written = json.loads(out.read_text())
    assert len(written["manifest_sha256"]) == len(written["data_sha256"]) == 64
