# SPDX-License-Identifier: Apache-2.0
"""Faults that meet a command as a process: signals in any phase, changed settings, odd locales."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pyarrow.parquet as pq
import pytest

import sparsetrain as st
from sparsetrain.cli import main
from tests import small_dlrm
from tests.helpers import slow_except

ROOT = Path(__file__).parents[2]
SMALL = ["--set", "model.dim=4", "--set", "model.bottom=8", "--set", "model.top=8"]


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("data with spaces é")
    generator = st.data.SyntheticCriteo(seed=3, max_cardinality=50)
    for chunk, (name, rows) in enumerate({"train": 1000, "test": 500}.items()):
        pq.write_table(generator.chunk(chunk, rows=rows), folder / f"{name}.parquet")
    return folder


def _start(data: Path, out: Path, *options: str, **environment: str) -> subprocess.Popen:
    command = [sys.executable, "-m", "sparsetrain", "train", str(data / "train.parquet")]
    return subprocess.Popen(
        [*command, "--valid", str(data / "test.parquet"), "--out", str(out), *options, *SMALL],
        stderr=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, **environment},
    )


EXIT_CODES = {signal.SIGINT: 130, signal.SIGTERM: 143}
# Words on stderr that show the phase, and a signal; both have one handler.
PHASES = [("learning the encoding", signal.SIGTERM), ("rows/s", signal.SIGINT)]


@pytest.mark.parametrize(("words", "signum"), slow_except(PHASES[1:], PHASES))
def test_a_signal_in_any_phase_ends_the_command_with_its_code(data, tmp_path, words, signum):
    out = tmp_path / "run"
    process = _start(data, out, "--epochs", "100000", "--checkpoint-every", "7")
    for line in process.stderr:
        if words in line:
            process.send_signal(signum)
            break
    rest = process.communicate(timeout=60)[1]
    assert process.returncode == EXIT_CODES[signum], rest
    assert "Traceback" not in rest
    assert rest.rstrip().endswith(f"stopped by {signal.Signals(signum).name}")
    assert (words != "rows/s" and not out.exists()) or st.load(out).steps > 0


@pytest.mark.slow
def test_two_signals_end_the_command_at_once_and_leave_a_whole_run(data, tmp_path):
    out = tmp_path / "run"
    process = _start(data, out, "--epochs", "100000", "--checkpoint-every", "1")
    for line in process.stderr:
        if "rows/s" in line:
            process.send_signal(signal.SIGTERM)
            time.sleep(0.002)
            process.send_signal(signal.SIGINT)
            break
    process.communicate(timeout=60)
    assert process.returncode in (130, 143)
    assert st.load(out).steps > 0


@pytest.mark.parametrize(
    "options", [(), pytest.param(("--resume", "auto"), marks=pytest.mark.slow)]
)
def test_a_run_that_was_killed_before_its_first_checkpoint_starts_again(data, tmp_path, options):
    out = tmp_path / "run"
    process = _start(data, out, "--epochs", "100000", *options)
    for line in process.stderr:
        if "rows/s" in line:
            process.kill()
            break
    process.communicate(timeout=60)
    assert sorted(os.listdir(out)) == [".lock", "log.csv", "log.jsonl"]
    again = ["train", str(data / "train.parquet"), "--out", str(out), *options, *SMALL]
    assert main(again) == 0
    assert st.load(out).steps > 0


def test_a_run_starts_in_an_empty_folder_and_in_no_other(data, tmp_path, capsys):
    train = ["train", str(data / "train.parquet"), *SMALL, "--out"]
    (tmp_path / "empty").mkdir()
    assert main([*train, str(tmp_path / "empty")]) == 0
    for name in ("notes.txt", "LATEST"):
        other = tmp_path / name.lower()
        other.mkdir()
        (other / name).write_text("step-000000000001\n")
        assert main([*train, str(other)]) == 2
        assert "exists already; name a new folder" in capsys.readouterr().err
        assert os.listdir(other) == [name]


def test_train_resumes_a_run_by_its_folder_alone_and_refuses_changes(data, tmp_path, capsys):
    whole, cut = tmp_path / "whole", tmp_path / "cut é"
    train = ["train", str(data / "train.parquet"), "--valid", str(data / "test.parquet"), *SMALL]
    assert main([*train, "--out", str(whole), "--epochs", "2", "--json"]) == 0
    expected = json.loads(capsys.readouterr().out)
    auto = ["--out", str(cut), "--resume", "auto"]
    assert main([*train, *auto, "--epochs", "1"]) == 0  # there is none: a fresh one
    assert main(["train", "--resume", str(cut), "--batch-size", "64"]) == 4
    said = capsys.readouterr().err.splitlines()[-1]
    assert "train.batch_size is 128 in" in said and "--allow-changed train.batch_size" in said
    assert main(["train", "--resume", str(cut), "--set", "model.dim=8"]) == 4
    assert "model.dim is 4 in" in capsys.readouterr().err
    other = tmp_path / "train.parquet"
    pq.write_table(pq.read_table(data / "train.parquet").slice(1), other)
    assert main(["train", str(other), "--resume", str(cut), "--epochs", "2"]) == 4
    assert "is not the file this run was trained on" in capsys.readouterr().err
    assert main(["train", "--resume", str(cut), "--epochs", "2", "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["valid"] == expected["valid"]
    small_dlrm.assert_same_state(st.load(cut).state_dict(), st.load(whole).state_dict())


def test_a_command_does_not_wait_for_threads_of_tvm_that_spin(data, tmp_path):
    """With so many turns of theirs the process would take hours to end."""
    spin = {"TVM_NUM_THREADS": "2", "TVM_THREAD_POOL_SPIN_COUNT": "4000000000"}
    process = _start(data, tmp_path / "run", "--json", **spin)
    try:
        printed, said = process.communicate(timeout=300)
    finally:
        process.kill()
    assert process.returncode == 0, said
    assert json.loads(printed.splitlines()[-1])["valid"]


def test_a_setting_of_a_run_is_taken_back_by_an_empty_value(data, tmp_path, capsys):
    run = tmp_path / "run"
    train = ["train", str(data / "train.parquet"), "--set", "optimizer.clip_norm=0.5", *SMALL]
    assert main([*train, "--out", str(run)]) == 0
    assert main(["settings", str(run)]) == 0
    assert "\nclip_norm = 0.5\n" in capsys.readouterr().out
    again = ["train", "--resume", str(run), "--epochs", "2", "--set", "optimizer.clip_norm="]
    assert main(again) == 4
    assert "clip_norm is 0.5 in" in (said := capsys.readouterr().err) and "and not set now" in said
    assert main([*again, "--allow-changed", "optimizer.clip_norm"]) == 0
    assert st.load(run).optimizer.clip_norm is None
    capsys.readouterr()
    assert main(["settings", str(run)]) == 0
    assert "\n# clip_norm =\n" in capsys.readouterr().out


SCHEMA = 'dense = ["I1", "I2"]\ncategories = ["C1", "C2"]\n'


@pytest.fixture
def described(data, tmp_path) -> Path:
    """A folder with a schema, and a run of an epoch that was trained by it."""
    (tmp_path / "log.toml").write_text(SCHEMA)
    train = ["train", str(data / "train.parquet"), "--schema", str(tmp_path / "log.toml"), *SMALL]
    assert main([*train, "--out", str(tmp_path / "run")]) == 0
    return tmp_path


# What is written into the file -> what is said of it.
EDITS = {
    SCHEMA + "linear.I1.scale = 2\n": "linear.I1.center was not set and is 0.0, linear.I1.scale",
    SCHEMA.replace(', "C2"', ""): 'categories was ["C1", "C2"] and is ["C1"]',
    SCHEMA + 'weights = "I3"\n': 'weights was not set and is "I3"',
    SCHEMA + 'time = "I3"\n': 'time was not set and is "I3"',
}


@pytest.mark.parametrize("edited", EDITS)
def test_a_schema_that_was_edited_is_refused_by_what_differs(described, capsys, edited):
    (described / "log.toml").write_text(edited)
    assert main(["train", "--resume", str(described / "run"), "--epochs", "2"]) == 4
    said = capsys.readouterr().err.splitlines()[-1]
    file, run = described / "log.toml", described / "run"
    assert (
        f"error: --schema {file}: {run} was trained with a different schema: {EDITS[edited]}"
        in said
    )
    assert said.endswith("; use that schema again, or train anew")
    assert st.load(run).epochs == 1


def test_a_schema_may_be_written_otherwise_or_moved(described, capsys):
    resume = ["train", "--resume", str(described / "run"), "--epochs"]
    (described / "log.toml").write_text("# the same\n" + SCHEMA)
    assert main([*resume, "2"]) == 0
    (described / "log.toml").rename(described / "new.toml")
    assert main([*resume, "3"]) == 2
    said = capsys.readouterr().err
    assert "log.toml: cannot read the schema" in said and "pass its new path with --schema" in said
    assert main([*resume, "3", "--schema", str(described / "new.toml")]) == 0
    assert main([*resume, "4"]) == 0  # where it lies now is kept


def test_a_run_that_noted_no_schema_goes_on_by_the_same_path(described, capsys, monkeypatch):
    manifest = st.Run(described / "run").manifest()
    assert manifest["extra"].pop("schema")["categories"] == ["C1", "C2"]
    monkeypatch.setattr(st.Run, "manifest", lambda _: manifest)
    resume = ["train", "--resume", str(described / "run"), "--epochs", "2"]
    (described / "same.toml").write_text(SCHEMA)
    assert main([*resume, "--schema", str(described / "same.toml")]) == 4
    assert "data.schema_file is" in capsys.readouterr().err
    assert main(resume) == 0


def test_a_run_is_drawn_from_its_log(data, tmp_path, capsys):
    pytest.importorskip("matplotlib")
    train = ["train", str(data / "train.parquet"), "--valid", str(data / "test.parquet"), *SMALL]
    options = ["--set", "train.log_every=5", "--validate-every", "10"]
    assert main([*train, "--out", str(tmp_path / "run"), *options]) == 0
    capsys.readouterr()
    assert main(["plot", str(tmp_path / "run"), "--json"]) == 0
    assert (tmp_path / "run" / "plot.png").read_bytes().startswith(b"\x89PNG")
    assert main(["plot", str(tmp_path)]) == 4
    assert "has no log" in capsys.readouterr().err


@pytest.mark.parametrize("locale", slow_except(["tr_TR.UTF-8"], ["C", "tr_TR.UTF-8"]))
def test_a_command_does_not_depend_on_the_locale_or_on_a_writable_folder(data, tmp_path, locale):
    place = tmp_path / "read-only"
    place.mkdir(mode=0o500)
    command = [sys.executable, "-m", "sparsetrain", "inspect", str(data / "test.parquet")]
    done = subprocess.run(
        command,
        cwd=place,
        env={**os.environ, "LC_ALL": locale, "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path])},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert list(place.iterdir()) == []
