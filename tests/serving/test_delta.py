# SPDX-License-Identifier: Apache-2.0
"""A delta and an older export make the very bytes of the newer one, or are refused."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import sparsetrain as st
from sparsetrain.errors import CheckpointError, ConfigError
from sparsetrain.serving.delta import apply, write_delta
from sparsetrain.serving.export import export
from sparsetrain.serving.model import Model
from sparsetrain.system.file_locks import try_lock
from tests.faults.commands import FAULTS, limited
from tests.helpers import slow_except
from tests.serving import test_model_features as features
from tests.serving.logs import SCHEMA, day_after, frame, rows_of


@pytest.fixture(scope="module")
def versions(exported, tmp_path_factory) -> tuple[st.Trainer, Path, Path, Path]:
    """A newer model that knows more values, the older and the newer export, and the delta."""
    trainer, folder = exported["ids"]
    place = tmp_path_factory.mktemp("versions")
    newer = day_after(trainer, SCHEMA)
    export(newer, place / "newer", cpu="native")
    write_delta(folder, place / "newer", place / "delta")
    return newer, folder, place / "newer", place / "delta"


def test_a_delta_makes_the_bytes_of_the_newer_export(versions, tmp_path):
    trainer, folder, newer, delta = versions
    apply(folder, delta, tmp_path / "made")
    for path in newer.iterdir():
        assert (tmp_path / "made" / path.name).read_bytes() == path.read_bytes()
    assert (tmp_path / "made" / "libtvm_ffi.so").samefile(folder / "libtvm_ffi.so")
    columns = rows_of(20, 6)
    expected = trainer.predict(frame(columns, SCHEMA))
    np.testing.assert_array_equal(Model(tmp_path / "made").predict(columns), expected)


ROOT = Path(__file__).parents[2]
EXPORTED_AGAIN = """
import sys
from sparsetrain.serving.export import export
from tests.serving import logs

schema = {"ids": logs.SCHEMA, "bags": logs.BAGS}[sys.argv[1]]
export(logs.trained(schema), sys.argv[2], cpu="native")
"""


def assert_same_files(one: Path, other: Path) -> None:
    files = [{path.name: path.read_bytes() for path in folder.iterdir()} for folder in (one, other)]
    assert files[0] == files[1]


@pytest.mark.parametrize("name", slow_except(["ids"], ["ids", "bags"]))
def test_exports_of_one_model_are_equal_in_any_process_with_a_cache_or_without(
    exported, tmp_path, name
):
    command = [sys.executable, "-c", EXPORTED_AGAIN, name, tmp_path / "again"]
    subprocess.run(command, check=True, cwd=ROOT, env={**os.environ, "SPARSETRAIN_CACHE": ""})
    assert_same_files(exported[name][1], tmp_path / "again")


def bytes_of(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.iterdir())


def assert_a_small_delta_of_one_row(
    trainer: st.Trainer, folder: Path, column: str, place: Path
) -> None:
    table = trainer.table(column)
    changed = table.copy()
    changed[3] += 0.5
    trainer.load_table(column, changed)
    try:
        export(trainer, place / "delta", cpu="native", since=folder)
        export(trainer, place / "newer", cpu="native")
    finally:
        trainer.load_table(column, table)
    assert bytes_of(place / "delta") < 64 << 10
    apply(folder, place / "delta", place / "made")
    assert_same_files(place / "newer", place / "made")


@pytest.mark.parametrize("name, column", [("ids", "user"), ("bags", "seen")])
def test_a_delta_of_one_row_is_small(exported, tmp_path, name, column):
    assert_a_small_delta_of_one_row(*exported[name], column, tmp_path)


def test_a_delta_of_one_item_holds_its_vector_alone(tmp_path):
    trainer = features.trainer_of("two towers")
    export(trainer, tmp_path / "older", cpu="native")
    assert_a_small_delta_of_one_row(trainer, tmp_path / "older", "item", tmp_path)
    assert np.load(tmp_path / "delta" / "items.npy.rows.npy").tolist() == [3]


KILLED = """
import os, signal, sys
from sparsetrain.serving import delta

delta._write_table = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
delta.apply(*sys.argv[1:])
"""


KILLED_FIRST = """
import fcntl, os, signal, sys
from pathlib import Path
from sparsetrain.serving import delta

def die(*_): os.kill(os.getpid(), signal.SIGKILL)
if sys.argv.pop(1) == "lock": fcntl.flock = die
else: os.rename = os.replace = Path.rename = Path.replace = die
delta.apply(*sys.argv[1:])
"""


@pytest.mark.parametrize("step", ["lock", "rename"])
def test_a_writer_that_is_killed_at_its_first_or_last_step_leaves_nothing_for_long(
    versions, tmp_path, step
):
    _, folder, _, delta = versions
    command = [sys.executable, "-c", KILLED_FIRST, step, folder, delta, tmp_path / "one"]
    assert subprocess.run(command, cwd=ROOT).returncode == -9
    assert len([*tmp_path.iterdir()]) == 1
    apply(folder, delta, tmp_path / "made")
    assert [*tmp_path.iterdir()] == [tmp_path / "made"]


def test_what_cannot_be_written_or_compared_is_said_before_a_model_is_read(versions, tmp_path):
    _, folder, newer, _ = versions
    for since in (None, folder):
        with pytest.raises(ConfigError, match="exists already"):
            export(tmp_path / "no model", newer, cpu="native", since=since)
    with pytest.raises(CheckpointError, match="no exported model"):
        export(tmp_path / "no model", tmp_path / "new", cpu="native", since=tmp_path)
    assert not [*tmp_path.iterdir()]


def test_what_a_killed_writer_leaves_is_removed_by_the_next_one(versions, tmp_path):
    _, folder, _, delta = versions
    for out in ("one", "other"):
        command = [sys.executable, "-c", KILLED, folder, delta, tmp_path / out]
        assert subprocess.run(command, cwd=ROOT).returncode == -9
        assert len([*tmp_path.iterdir()]) == 1  # that of the first went, this one stays
    (dead,) = tmp_path.iterdir()
    living = dead.with_name(dead.name[:-1] + "z")
    living.mkdir()
    with try_lock(living):
        apply(folder, delta, tmp_path / "made")
        assert {*tmp_path.iterdir()} == {tmp_path / "made", living}


def test_a_damaged_delta_is_refused_and_nothing_is_left(versions, tmp_path):
    _, folder, _, delta = versions
    for path in sorted(delta.iterdir()):
        whole = path.read_bytes()
        path.write_bytes(whole[: len(whole) // 2])
        with pytest.raises(CheckpointError):
            apply(folder, delta, tmp_path / "made")
        path.write_bytes(whole)
    assert not [*tmp_path.iterdir()]


@pytest.mark.parametrize("fault", ["a pipe", "an endless device"])
def test_a_file_that_does_not_end_is_refused_in_either_folder(versions, tmp_path, fault):
    _, folder, _, delta = versions
    needed = {"manifest.txt", *os.listdir(folder)} - ({*os.listdir(delta)} - {"manifest.txt"})
    cases = [(folder, name) for name in needed] + [(delta, name) for name in os.listdir(delta)]
    for number, (damaged, name) in enumerate(cases):
        place = tmp_path / str(number)
        pair = [
            shutil.copytree(path, place / path.name, copy_function=os.link)
            for path in (folder, delta)
        ]
        FAULTS[fault](place / damaged.name / name)
        with limited(), pytest.raises(CheckpointError, match="no exported|not a delta|regular"):
            apply(*pair, place / "made")
        assert not (place / "made").exists()


def test_a_delta_for_another_export_is_refused(versions, tmp_path):
    _, _, newer, delta = versions
    with pytest.raises(CheckpointError, match="apply deltas in the order"):
        apply(newer, delta, tmp_path / "made")
