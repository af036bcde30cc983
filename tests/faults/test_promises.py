# SPDX-License-Identifier: Apache-2.0
"""Faults from outside: kills, failing calls, hostile folders, no memory, strange paths.

`docs/faults.md` lists every fault with its promise and its test; the first test here compares the
list with the tests that there are. Signals and commands: `test_faults_of_commands.py`.
"""

import ast
import errno
import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections import namedtuple
from functools import cache
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import sparsetrain as st
from sparsetrain import checkpoint
from sparsetrain.errors import CheckpointError, NumericalError, ResourceError, SparsetrainError
from tests import small_dlrm
from tests.faults import campaign, commands, failing_calls, fuzz, hostile, steady
from tests.heap import resident_bytes
from tests.helpers import slow_except

ROOT = Path(__file__).parents[2]
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
        assert test in _functions(file), f"{fault}: {name}"


@cache
def _functions(file: str) -> set[str]:
    tree = ast.parse((ROOT / "tests" / file).read_text())
    return {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}


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


@pytest.mark.parametrize("kills", slow_except(["3"], ["3", "200" if THOROUGH else "8"]))
def test_a_run_that_is_killed_at_random_moments_ends_with_the_same_bits(kills):
    done = _script("tests.faults.kill_loop", "--kills", kills)
    assert done.returncode == 0, done.stdout + done.stderr
    report = json.loads(done.stdout.splitlines()[-1])
    assert report["kills"] == int(kills) and report["resumes"] > 0


# Tasks of one process, and which of their calls fail, each n-th: a sample, and all of them.
QUICK = (("save", "resume", "convert"), 15)
TASKS = [QUICK, *(((task,), 9 if task == "resume" else 1) for task in failing_calls.TASKS)]


@pytest.mark.skipif(not shutil.which("cc"), reason="no C compiler")
@pytest.mark.skipif(sys.platform != "linux", reason="preloading is Linux's")
@pytest.mark.parametrize(("tasks", "stride"), slow_except([QUICK], TASKS))
def test_every_call_may_fail_and_what_is_on_the_disk_stays_whole(tasks, stride):
    done = failing_calls.run([*tasks], stride=1 if THOROUGH else stride)
    assert done.returncode == 0, done.stderr[-4000:]
    failed = {line["task"]: line["failed"] for line in map(json.loads, done.stdout.splitlines())}
    assert failed.keys() == {*tasks}
    assert set().union(*failed.values()) == {"fsync", "open", "rename", "write"}
    assert all(min(calls.values()) >= 1 for calls in failed.values())


# --- Hostile folders ----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def small_run(tmp_path_factory) -> Path:
    """A run of one checkpoint."""
    folder = tmp_path_factory.mktemp("small") / "run"
    trainer = small_dlrm.trainer(encoder=small_dlrm.encoder())
    trainer.fit(small_dlrm.raw_rows(20), run=folder, progress=None)
    return folder


@pytest.mark.parametrize("case", hostile.CASES)
def test_a_hostile_folder_is_refused_and_nothing_is_touched(small_run, tmp_path, case):
    folder = shutil.copytree(small_run, tmp_path / "run")
    hostile.CASES[case](folder)
    before = hostile.snapshot(tmp_path)
    with pytest.raises(SparsetrainError) as raised:
        st.load(folder)
    assert "\n" not in str(raised.value)
    assert hostile.snapshot(tmp_path) == before


def test_loading_hostile_folders_imports_executes_and_writes_nothing(small_run, tmp_path):
    for number, damage in enumerate(hostile.CASES.values()):
        damage(shutil.copytree(small_run, tmp_path / str(number) / "run"))
    done = _script("tests.faults.hostile", str(tmp_path))
    assert done.returncode == 0, done.stderr[-4000:]
    report = json.loads(done.stdout)
    assert report["refused"] == len(hostile.CASES)
    assert report["events"] == []


@pytest.mark.parametrize("target", fuzz.TARGETS)
def test_mutated_input_gives_errors_only(tmp_path, target):
    report = fuzz.run(target, most=10_000 if THOROUGH else 100, seed=0, place=tmp_path)
    assert report["crashes"] == []


SAMPLES = {
    "bits": ["bits", "--stride", "2003"],
    "files": ["files", "--commands", "settings"],
    "more files": ["files", "--commands", "evaluate"],
}


@pytest.mark.parametrize("sample", slow_except(["bits", "files"], SAMPLES))
def test_a_fault_of_the_campaign_is_refused_or_harmless(sample, capsys):
    assert campaign.main(SAMPLES[sample]) == 0, capsys.readouterr().out


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
    model = st.models.DLRM(rows=[2**40, 7], dim=64, num_dense=13)
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


def test_memory_does_not_grow_over_epochs():
    trainer = small_dlrm.trainer(encoder=small_dlrm.encoder())
    rows = small_dlrm.raw_rows(100)
    sizes = []
    for _ in range(6):
        trainer.fit(rows, batch_size=7, epochs=5, progress=None)
        sizes.append(resident_bytes())
    assert sizes[-1] - sizes[1] < 8e6


def test_memory_and_open_files_do_not_grow_over_checkpoints(tmp_path):
    held = steady.train(tmp_path, saves=60, rows=1280, every=5)
    grown = steady.growth(held)
    assert grown["bytes"] < 8e6
    assert grown["files"] <= 0 and grown["threads"] <= 0 and grown["names"] <= 0


def test_a_save_needs_no_second_copy_of_the_tables(tmp_path):
    import tracemalloc

    trainer = st.Trainer(
        st.models.DLRM(rows=[1_000_000], dim=32, bottom=(8,), top=(8,), num_dense=13),
        st.optim.sgd(0.1),
    )
    small_dlrm.trainer().save(tmp_path / "first")  # loads what any save needs once in a process
    tracemalloc.start()
    trainer.save(tmp_path / "run")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 0.05 * 128e6


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


def test_a_disk_without_room_for_a_checkpoint_is_found_before_the_first_step(tmp_path, monkeypatch):
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage(10**9, 10**9, 4096))
    stepped = []
    monkeypatch.setattr(st.Trainer, "step", lambda self, batch: stepped.append(batch))
    with pytest.raises(ResourceError, match=r"run needs 1\.\d MB, but the disk has 0\.0 MB free"):
        _fitted(tmp_path)
    assert not stepped and not (tmp_path / "run").exists()


def test_room_is_looked_for_where_the_folder_lies(tmp_path, monkeypatch):
    (tmp_path / "disk").mkdir()
    (tmp_path / "run").symlink_to(tmp_path / "disk")
    asked, usage = [], shutil.disk_usage
    monkeypatch.setattr(shutil, "disk_usage", lambda path: asked.append(path) or usage(path))
    checkpoint.require_room(tmp_path / "run", 1)
    checkpoint.require_room(tmp_path / "disk" / "new" / "run", 1)
    assert asked == [tmp_path / "run", tmp_path / "disk"]


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_that_may_not_be_written_is_refused_first(tmp_path):
    (tmp_path / "run").mkdir(mode=0o500)
    with pytest.raises(CheckpointError, match="Permission denied"):
        _fitted(tmp_path)


@pytest.mark.parametrize("name", ["é ü 漢字", "-" + "x" * 199, "per%cent\nquote'\""])
def test_a_run_may_lie_at_an_odd_path(tmp_path, name):
    trainer = small_dlrm.trainer(encoder=small_dlrm.encoder())
    trainer.fit(small_dlrm.raw_rows(20), run=tmp_path / name, progress=None)
    small_dlrm.assert_same_state(st.load(tmp_path / name).state_dict(), trainer.state_dict())


# Each third command, and as a slow case all.
@pytest.mark.parametrize("stride", slow_except([3], [3, 1]))
def test_every_command_works_where_the_path_is_not_utf8(tmp_path, stride):
    odd = tmp_path / os.fsdecode(b"-a b\n\xff")
    commands.prepare(tmp_path)[0].rename(odd)
    for name, (command, _) in [*commands.COMMANDS.items()][::stride]:
        code, said = commands.run(command, odd)
        assert code == 0, f"{name}: {said}"
        for left in odd.glob("out*"):
            shutil.rmtree(left) if left.is_dir() else left.unlink()


def test_a_run_goes_on_to_the_same_bits_where_the_clock_goes_back(tmp_path, monkeypatch):
    rows = tmp_path / "rows.parquet"
    pq.write_table(pa.table(small_dlrm.raw_rows(60)), rows)

    def fit(trainer, run, **options):
        run = st.Run(tmp_path / run, every=1, log_every=1, keep=1, tensorboard=True)
        trainer.fit(str(rows), run=run, batch_size=20, epochs=2, progress=None, **options)

    whole, cut = (small_dlrm.trainer(encoder=small_dlrm.encoder()) for _ in range(2))
    fit(whole, "whole")
    fit(cut, "run", stop=lambda: cut.steps == 2)
    for path in tmp_path.rglob("*"):
        os.utime(path, (1 << 33, 1 << 33))
    clock = iter(range(10**9, 0, -1))
    monkeypatch.setattr(time, "time", lambda: float(next(clock)))
    resumed = small_dlrm.share_programs(st.load(tmp_path / "run"))
    fit(resumed, "run", resume=True)
    small_dlrm.assert_same_state(resumed.state_dict(), whole.state_dict())
    small_dlrm.assert_same_state(st.load(tmp_path / "run").state_dict(), whole.state_dict())
    assert next(clock) < 10**9 - 1
    assert [line["step"] for line in st.Run(tmp_path / "run").log()] == [1, 2, 3, 4, 5, 6]


@pytest.mark.parametrize("umask", slow_except([0o077], [0o077, 0o022]), ids=oct)
def test_commands_work_under_a_strict_umask_and_gives_others_no_access(tmp_path, umask):
    before = os.umask(umask)
    try:
        place = commands.prepare(tmp_path)[1]
        for name in ("train --resume", "evaluate", "predict", "quantize", "apply"):
            if name in commands.COMMANDS:
                code, said = commands.run(commands.COMMANDS[name][0], place)
                assert code == 0, f"{name}: {said}"
                for left in place.glob("out*"):
                    left.rename(place / f"{name} {left.name}")
    finally:
        os.umask(before)
    for path in place.rglob("*"):
        assert not path.lstat().st_mode & umask & 0o777, path
