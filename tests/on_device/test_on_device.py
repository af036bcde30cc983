# SPDX-License-Identifier: Apache-2.0
"""A run on a device: its file outlives it, its time holds, its page comes from the file alone."""

import contextlib
import subprocess
import sys
import time
from importlib import import_module
from pathlib import Path

import pytest

from tests.on_device import lines
from tests.on_device.facts import ROOT
from tests.on_device.page import page
from tests.on_device.stages import Stage, stages

script = import_module("tests.on_device.__main__")
FACTS = {"commit": "1234abcd", "card": "NVIDIA H200, 143771 MiB", "nvcc": None}
RUN = {"at": 0.0, "run": {"emulated": False, "minutes": 40, "facts": FACTS}}
# Three tests, while the last of which the process dies or hangs.
TESTS = """
import os, time, pytest
def test_right(): pass
def test_wrong(): assert 1 + 1 == 3
def test_left_out(): pytest.skip("no tensor cores")
def test_last(): {}
"""


def python(code: str, name: str = "one", share: float = 1.0) -> Stage:
    return Stage(name, [sys.executable, "-c", code], share, prints_json=True)


def in_a_file(tmp_path, last: str) -> Stage:
    file = tmp_path / "test_some.py"
    file.write_text(TESTS.format(last))
    plugins = ["-p", "tests.on_device.lines", "-p", "no:cacheprovider", "-p", "no:xdist"]
    ini = tmp_path / "pytest.ini"
    ini.write_text("[pytest]\n")
    words = ["-m", "pytest", "-q", "-c", str(ini), *plugins, str(file)]
    return Stage("some tests", [sys.executable, *words])


def wait_for_end(pid):
    """Until the process that a file names is gone; a zombie has ended too."""
    status = Path(f"/proc/{int(pid.read_text())}/status")
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        while "State:\tZ" not in status.read_text():
            time.sleep(0.05)


@pytest.fixture
def out(tmp_path):
    path = tmp_path / "run.jsonl"
    lines.append(path, run=RUN["run"])
    return path


def run(planned, out, seconds=300.0, **options):
    why_not = script.run(planned, out, time.monotonic() + seconds, **options)
    ended = [line for line in lines.read(out) if line.get("outcome") != "begun"]
    return why_not, {
        line["stage"]: line for line in ended if "stage" in line and "test" not in line
    }


def outcomes(out):
    return {line["test"].split("::")[-1]: line for line in lines.read(out) if "test" in line}


def test_each_test_has_its_line_and_a_crash_names_the_test_it_hit(out, tmp_path):
    _, ended = run([in_a_file(tmp_path, "os.abort()"), python("print('{\"a\": 1}')")], out)
    assert ended["some tests"]["reason"] == "killed by SIGABRT"
    assert ended["one"]["result"] == {"a": 1}
    found = outcomes(out)
    assert {name: line["outcome"] for name, line in found.items()} == {
        "test_right": "passed",
        "test_wrong": "failed",
        "test_left_out": "skipped",
        "test_last": "begun",
    }
    assert found["test_wrong"]["reason"] == "assert (1 + 1) == 3"
    assert found["test_left_out"]["reason"] == "Skipped: no tensor cores"
    text = page(lines.read(out))
    assert "| some tests | failed | 1 | 1 | 1 |" in text
    assert "::test_wrong`: assert (1 + 1) == 3" in text
    assert "- **some tests**: killed by SIGABRT" in text
    assert "## Begun and not ended\n\n- `test_some.py::test_last`" in text


def test_a_kill_in_the_middle_leaves_what_was_learnt_and_no_process(out, tmp_path):
    pid = tmp_path / "pid"
    stage = in_a_file(tmp_path, f"open({str(pid)!r}, 'w').write(str(os.getpid())); time.sleep(600)")
    code = (
        "import sys, time; from importlib import import_module; from pathlib import Path\n"
        "from tests.on_device.stages import Stage\n"
        f"stages = [Stage('first', [sys.executable, '-c', '']), {stage!r}]\n"
        "main = import_module('tests.on_device.__main__')\n"
        f"main.run(stages, Path({str(out)!r}), time.monotonic() + 600)\n"
    )
    process = subprocess.Popen([sys.executable, "-c", code], cwd=ROOT)
    while not pid.exists() or not pid.read_text():
        assert process.poll() is None
        time.sleep(0.05)
    process.kill()
    process.wait()
    text = page(lines.read(out))
    assert "then it was cut off" in text
    assert "| first | done |" in text
    assert "| some tests | cut off | 1 | 1 | 1 |" in text
    wait_for_end(pid)


def test_a_line_that_is_cut_off_spoils_no_other(out):
    with out.open("a") as file:
        file.write('{"at": 1, "stage": "cu')
    lines.append(out, stage="next", outcome="not run", reason="tried")
    assert [line.get("stage") for line in lines.read(out)] == [None, "next"]


def test_the_time_limit_holds_and_what_had_no_time_says_so(out, tmp_path):
    started = tmp_path / "pid"
    code = f"import os; os.system('echo $$ > {started}; exec sleep 600')"
    _, ended = run([python(code, "slow"), python("", "last")], out, seconds=3.0)
    assert ended["slow"]["outcome"] == "out of time"
    assert ended["last"]["reason"] == "no time was left"
    wait_for_end(started)  # what it started was ended with it


def test_a_stage_that_fails_stops_no_other(out):
    planned = [
        python("raise ValueError('no luck')", "raises"),
        python("import os; os.kill(os.getpid(), 11)", "crashes"),
        python("print('{\"us\": 2.5}')", "works"),
    ]
    _, ended = run(planned, out)
    assert [line["outcome"] for line in ended.values()] == ["failed", "failed", "done"]
    assert ended["raises"]["reason"] == "ValueError: no luck"
    assert ended["crashes"]["reason"] == "killed by SIGSEGV"
    assert "- **raises**: ValueError: no luck" in page(lines.read(out))


def test_where_cuda_cannot_be_used_the_rest_says_why(out):
    doctor = python('print(\'{"cuda": "no: there is no driver"}\')', "doctor")
    why_not, ended = run([doctor, python("", "rest")], out, on_a_gpu=True)
    assert why_not == "there is no driver"
    assert ended["rest"]["outcome"] == "not run"


def test_the_page_is_a_function_of_the_file():
    found = {
        "share_of_copy": {"lookup": 0.9041, "update": 0.5},
        "lookups": 1703936,
        "turns_ms": [1, 2],
        "TFLOP_per_s": {"8192x512x367": {"ours": {"forward": 38.76}}},
        "torch": None,
    }
    written = [
        RUN,
        {"at": 1.0, "stage": "rows --width 128", "outcome": "begun", "limit": 60.0},
        {
            "at": 9.0,
            "stage": "rows --width 128",
            "outcome": "done",
            "seconds": 8.0,
            "result": found,
        },
        {"at": 9.0, "stage": "rest", "outcome": "not run", "reason": "no time was left"},
        {"at": 60.0, "seconds": 60.0},
    ]
    assert page(written) == PAGE
    told = RUN["run"] | {"emulated": True}
    emulated = page([RUN | {"run": told}, *written[1:]])
    assert "# A run on an emulated device" in emulated
    assert "## rows --width 128 (emulated: sizes and times mean nothing)" in emulated
    assert page(written[:2]) != page(written[:3])
    assert page([*written, *written]) == PAGE + "\n" + PAGE


PAGE = """\
# A run on NVIDIA H200, 143771 MiB

- commit: 1234abcd
- card: NVIDIA H200, 143771 MiB
- nvcc: none
- time: 1.0 of 40 minutes

## Stages

| stage | outcome | passed | failed | skipped | seconds | at most |
| --- | --- | --- | --- | --- | --- | --- |
| rows --width 128 | done |  |  |  | 8.0 | 60 |
| rest | not run: no time was left |  |  |  |  |  |

## rows --width 128

- lookups: 1,703,936
- torch: none
- share_of_copy: lookup 0.9041, update 0.5
- TFLOP_per_s 8192x512x367 ours: forward 38.76
"""


def test_one_line_says_what_is_not_installed(monkeypatch, capsys, tmp_path):
    facts = import_module("tests.on_device.facts")
    found = facts.version
    monkeypatch.setattr(facts, "version", lambda name: None if "tvm" in name else found(name))
    assert script.main(["--out", str(tmp_path / "none")]) == 2
    said = capsys.readouterr().err
    needed = "pip install -c constraints.txt apache-tvm apache-tvm-ffi"
    assert said == f"on_device: packages are not installed: {needed}\n"
    assert not (tmp_path / "none").exists()


def test_an_emulated_run_goes_from_start_to_end(tmp_path):
    out = tmp_path / "run.jsonl"
    words = ["--emulated", "--minutes", "0.15", "--out", str(out)]
    command = [sys.executable, "-m", "tests.on_device"]
    done = subprocess.run([*command, *words], cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert done.returncode in (0, 1), done.stderr
    again = subprocess.run([*command, "--page", str(out)], cwd=ROOT, capture_output=True, text=True)
    assert again.stdout == done.stdout
    for stage in stages(emulated=True):
        assert f"| {stage.name} | " in done.stdout
    assert "not run: needs a device" in done.stdout
