# SPDX-License-Identifier: Apache-2.0
"""Faults from outside: kills, failing calls, hostile folders, no memory, signals, strange paths.

`docs/faults.md` lists every fault with its promise and its test; the first test here compares the
list with the tests that there are.
"""

import ast
import errno
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

import sparsetrain as st
from sparsetrain import checkpoint
from sparsetrain.cli import main
from sparsetrain.errors import CheckpointError, NumericalError, ResourceError, SparsetrainError
from tests import small_dlrm
from tests.faults import failing_calls, fuzz, hostile

ROOT = Path(__file__).parents[1]
# All kills, all calls and a longer fuzz instead of samples of them.
THOROUGH = bool(os.environ.get("SPARSETRAIN_TEST_THOROUGH"))


# --- The table ----------------------------------------------------------------------------------


def _listed() -> list[tuple[str, str]]:
    """Return (fault, test) pairs of docs/faults.md."""
    pairs = []
    for line in (ROOT / "docs" / "faults.md").read_text().splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if line.startswith("|") and len(cells) == 3 and "::" in cells[2]:
            pairs += [(cells[0], test) for test in re.findall(r"`([^`]+::[^`]+)`", cells[2])]
    return pairs


def test_every_fault_in_the_document_has_the_tests_it_names():
    pairs = _listed()
    assert len({fault for fault, _ in pairs}) >= 40
    for fault, name in pairs:
        file, _, test = name.partition("::")
        tree = ast.parse((ROOT / "tests" / file).read_text())
        found = {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
        assert test in found, f"{fault}: {name}"


def test_every_row_of_the_document_names_a_test():
    rows = [
        line
        for line in (ROOT / "docs" / "faults.md").read_text().splitlines()
        if line.startswith("|") and not line.startswith(("| fault", "| ---"))
    ]
    assert all("::" in row for row in rows)


# --- Kills and failing calls --------------------------------------------------------------------


def _script(*arguments: str) -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, "-m", *arguments], cwd=ROOT, capture_output=True, text=True, timeout=600
    )


def test_a_run_that_is_killed_at_random_moments_ends_with_the_same_bits():
    kills = "200" if THOROUGH else "20"
    done = _script("tests.faults.kill_loop", "--kills", kills)
    assert done.returncode == 0, done.stdout + done.stderr
    report = json.loads(done.stdout.splitlines()[-1])
    assert report["kills"] == int(kills) and report["resumes"] > 0


@pytest.mark.skipif(not shutil.which("cc"), reason="no C compiler")
@pytest.mark.skipif(sys.platform != "linux", reason="preloading is Linux's")
@pytest.mark.parametrize("task", failing_calls.TASKS)
def test_every_call_may_fail_and_what_is_on_the_disk_stays_whole(task):
    done = failing_calls.run([task], stride=1 if THOROUGH or task != "resume" else 5)
    assert done.returncode == 0, done.stderr[-4000:]
    failed = json.loads(done.stdout)["failed"]
    assert set(failed) == {"fsync", "open", "rename", "write"}
    assert min(failed.values()) >= 1


# --- Hostile folders ----------------------------------------------------------------------------


@pytest.mark.parametrize("case", hostile.CASES)
def test_a_hostile_folder_is_refused_and_nothing_is_touched(tmp_path, case):
    folder = small_run(tmp_path)
    hostile.CASES[case](folder)
    before = hostile.snapshot(tmp_path)
    with pytest.raises(SparsetrainError) as raised:
        st.load(folder)
    assert "\n" not in str(raised.value)
    assert hostile.snapshot(tmp_path) == before


def test_loading_hostile_folders_imports_executes_and_writes_nothing(tmp_path):
    for number, damage in enumerate(hostile.CASES.values()):
        damage(small_run(tmp_path / str(number)))
    done = _script("tests.faults.hostile", str(tmp_path))
    assert done.returncode == 0, done.stderr[-4000:]
    report = json.loads(done.stdout)
    assert report["refused"] == len(hostile.CASES)
    assert report["events"] == []


def small_run(place: Path) -> Path:
    """Return a run of one checkpoint."""
    trainer = small_dlrm.trainer(encoder=small_dlrm.encoder())
    trainer.fit(small_dlrm.raw_rows(20), run=place / "run", progress=None)
    return place / "run"


@pytest.mark.parametrize("target", fuzz.TARGETS)
def test_mutated_input_gives_errors_only(tmp_path, target):
    report = fuzz.run(target, seconds=10.0 if THOROUGH else 0.7, seed=0, place=tmp_path)
    assert report["tries"] > 50
    assert report["crashes"] == []


# --- Memory and numbers -------------------------------------------------------------------------


def _fitted(tmp_path, **options) -> dict:
    trainer = small_dlrm.trainer(encoder=small_dlrm.encoder(), **options)
    run = st.Run(tmp_path / "run", every=1)
    return trainer.fit(small_dlrm.raw_rows(100), batch_size=32, run=run, progress=None)


OUT_OF_MEMORY = {
    "host": MemoryError(),
    "TVM": RuntimeError("InternalError: std::bad_alloc"),
    "CUDA": RuntimeError("InternalError: CUDA: out of memory"),
}


@pytest.mark.parametrize("kind", OUT_OF_MEMORY)
def test_no_memory_in_a_step_names_table_and_bytes_and_leaves_the_checkpoint(
    tmp_path, monkeypatch, kind
):
    step = st.Trainer.step

    def failing(self, batch):
        if self.steps == 2:
            raise OUT_OF_MEMORY[kind]
        return step(self, batch)

    monkeypatch.setattr(st.Trainer, "step", failing)
    with pytest.raises(ResourceError) as raised:
        _fitted(tmp_path)
    said = str(raised.value)
    assert "out of memory in step 3 (epoch 0, batch 2: rows 64 to 95" in said
    assert "the largest, 'embeddings.C1.weight', 3,200 of them" in said
    assert said.endswith("run/step-000000000002")
    assert st.load(tmp_path / "run").steps == 2


def test_no_memory_for_a_table_names_it_and_its_bytes():
    model = st.models.DLRM(rows=[2**40, 7], dim=64)
    with pytest.raises(ResourceError, match=r"parameter 'embeddings.*needs 262144\.\d\d GiB"):
        st.Trainer(model, st.optim.adagrad(0.1))


def test_a_loss_that_is_not_finite_names_the_batch_and_leaves_the_checkpoint(tmp_path):
    with pytest.raises(NumericalError) as raised:
        _fitted(tmp_path, optimizer=st.optim.sgd(1e38))
    said = str(raised.value)
    assert re.search(r"in step \d+: nothing was updated; .*\(epoch 0, batch \d+: rows \d+ to", said)
    assert "the last checkpoint is" in said
    state = st.load(tmp_path / "run").state_dict()
    assert all(np.isfinite(array).all() for array in state.values())


@pytest.mark.parametrize("name", ["bottom.layers.1.weight", "top.layers.0.weight"])
def test_check_numerics_finds_the_first_value_that_is_not_finite(name):
    trainer = small_dlrm.trainer()
    batch = small_dlrm.batch(16)
    assert trainer.first_nonfinite(batch) is None
    with trainer._writing() as arrays:
        arrays[name][...] = 3e38
    found = trainer.first_nonfinite(batch)
    assert found is not None and f"'{name}'" in found
    with trainer._writing() as arrays:
        arrays[name].flat[0] = np.nan
    assert trainer.first_nonfinite(batch) == (
        f"the first value that is not finite is {name!r}, an argument"
    )


def test_a_run_with_check_numerics_says_where_it_began():
    trainer = small_dlrm.trainer()
    with trainer._writing() as arrays:
        arrays["bottom.layers.0.weight"][...] = 3e38
    with pytest.raises(NumericalError, match=r"matmul with 'dense', 'bottom.layers.0.weight'"):
        trainer.fit([small_dlrm.batch(16)], progress=None, check_numerics=True)


# --- Disks --------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_a_full_disk_in_a_checkpoint_ends_the_run_and_leaves_the_one_before(
    tmp_path, monkeypatch, number
):
    write = checkpoint.write

    def failing(folder, *arguments, **options):
        if folder.name.endswith("3"):
            raise ResourceError(f"{folder} cannot be written: {os.strerror(number)}")
        write(folder, *arguments, **options)

    monkeypatch.setattr(checkpoint, "write", failing)
    with pytest.raises(ResourceError, match="cannot be written"):
        _fitted(tmp_path)
    assert st.load(tmp_path / "run").steps == 2


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_that_may_not_be_written_is_refused_first(tmp_path):
    (tmp_path / "run").mkdir(mode=0o500)
    with pytest.raises(CheckpointError, match="Permission denied"):
        _fitted(tmp_path)


# --- Commands -----------------------------------------------------------------------------------

SMALL = ["--set", "model.dim=4", "--set", "model.bottom=8", "--set", "model.top=8"]


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("data with spaces é")
    generator = st.data.SyntheticCriteo(seed=3, max_cardinality=50)
    for chunk, (name, rows) in enumerate({"train": 3000, "test": 500}.items()):
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


# Words on stderr that show the phase -> what has to be there afterwards.
PHASES = {
    "learning the encoding": False,
    "tables of": False,
    "rows/s": True,
}


@pytest.mark.parametrize("signum, code", [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
@pytest.mark.parametrize("words", PHASES)
def test_a_signal_in_any_phase_ends_the_command_with_its_code(data, tmp_path, words, signum, code):
    if signum == signal.SIGINT and words != "rows/s":
        pytest.skip("the same handler; one signal for the early phases")
    out = tmp_path / "run"
    process = _start(data, out, "--epochs", "100000", "--checkpoint-every", "7")
    for line in process.stderr:
        if words in line:
            process.send_signal(signum)
            break
    rest = process.communicate(timeout=60)[1]
    assert process.returncode == code, rest
    assert "Traceback" not in rest
    assert rest.rstrip().endswith(f"stopped by {signal.Signals(signum).name}")
    if PHASES[words]:
        assert st.load(out).steps > 0
    else:
        assert not out.exists() or st.load(out).steps > 0


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


def test_a_run_is_drawn_from_its_log(data, tmp_path, capsys):
    pytest.importorskip("matplotlib")
    train = ["train", str(data / "train.parquet"), "--valid", str(data / "test.parquet"), *SMALL]
    options = ["--set", "train.log_every=5", "--validate-every", "10"]
    assert main([*train, "--out", str(tmp_path / "run"), *options]) == 0
    capsys.readouterr()
    assert main(["plot", str(tmp_path / "run"), "--json"]) == 0
    assert (tmp_path / "run" / "plot.png").read_bytes().startswith(b"\x89PNG")
    assert main(["plot", str(tmp_path)]) == 4
    assert "holds no log" in capsys.readouterr().err


@pytest.mark.parametrize(
    "name", ["a b", "é ü 漢字", "-dash", "x" * 200, "per%cent", "new\nline", "quote'\""]
)
def test_a_run_may_lie_at_an_odd_path(tmp_path, name):
    trainer = small_dlrm.trainer(encoder=small_dlrm.encoder())
    trainer.fit(small_dlrm.raw_rows(20), run=tmp_path / name, progress=None)
    small_dlrm.assert_same_state(st.load(tmp_path / name).state_dict(), trainer.state_dict())


@pytest.mark.parametrize("locale", ["C", "POSIX", "tr_TR.UTF-8"])
def test_a_command_does_not_depend_on_the_locale_or_on_a_writable_folder(data, tmp_path, locale):
    place = tmp_path / "read-only"
    place.mkdir(mode=0o500)
    command = [sys.executable, "-m", "sparsetrain", "inspect", str(data / "test.parquet")]
    done = subprocess.run(
        command,
        cwd=place,
        env={**os.environ, "LC_ALL": locale, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert list(place.iterdir()) == []


def test_memory_does_not_grow_over_epochs():
    trainer = small_dlrm.trainer(encoder=small_dlrm.encoder())
    rows = small_dlrm.raw_rows(100)
    sizes = []
    for _ in range(6):
        trainer.fit(rows, batch_size=7, epochs=5, progress=None)
        sizes.append(_resident_mb())
    assert sizes[-1] - sizes[1] < 8


def _resident_mb() -> float:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


def test_a_save_needs_no_second_copy_of_the_tables(tmp_path):
    import tracemalloc

    trainer = st.Trainer(
        st.models.DLRM(rows=[1_000_000], dim=32, bottom=(8,), top=(8,)), st.optim.sgd(0.1)
    )
    tracemalloc.start()
    trainer.save(tmp_path / "run")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 0.05 * 128e6
