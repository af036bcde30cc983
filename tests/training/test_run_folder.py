# SPDX-License-Identifier: Apache-2.0
"""A run's folder that people, or a full disk, have changed: said by name, and nothing is lost."""

import os
import shutil
from pathlib import Path

import pytest

import sparsetrain as st
from sparsetrain.cli import main
from sparsetrain.errors import CheckpointError, ConfigError
from tests import small_dlrm

STEPS = ["step-000000000001", "step-000000000002", "step-000000000003"]


@pytest.fixture
def run(tmp_path) -> Path:
    trainer = small_dlrm.trainer(encoder=small_dlrm.encoder(), seed=3)
    fit(trainer, tmp_path / "run", epochs=1)
    return tmp_path / "run"


def fit(trainer: st.Trainer, folder: Path, *, keep: int = 5, **options) -> None:
    run = st.Run(folder, every=1, keep=keep)
    data = small_dlrm.raw_rows(48)
    trainer.fit(data, batch_size=16, run=run, progress=None, **options)


def loaded(folder: Path) -> st.Trainer:
    return small_dlrm.share_programs(st.load(folder))


def checkpoints(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.glob("step-*"))


def names_nothing(run: Path) -> None:
    (run / "LATEST").write_text("step-000000000099\n")


def is_gone(run: Path) -> None:
    (run / "LATEST").unlink()


LOST = {
    names_nothing: r"LATEST names step-0*99, which is missing; the newest is step-0*3: write",
    is_gone: r"has checkpoints up to step-0*3, but its LATEST is missing or older: write the name",
}


@pytest.mark.parametrize("lose", LOST)
def test_a_lost_pointer_is_named_and_no_checkpoint_goes(run, lose):
    lose(run)
    with pytest.raises(CheckpointError, match=LOST[lose]):
        st.load(run)
    with pytest.raises(CheckpointError):
        fit(small_dlrm.trainer(encoder=small_dlrm.encoder()), run)
    assert checkpoints(run) == STEPS
    assert main(["train", "--resume", str(run)]) == 4
    (run / "LATEST").write_text(f"{STEPS[-1]}\n")
    assert st.load(run).steps == 3


def test_a_pointer_that_is_older_than_two_checkpoints_is_not_taken_for_a_kill(run):
    (run / "LATEST").write_text(f"{STEPS[0]}\n")
    with pytest.raises(CheckpointError, match="its LATEST is missing or older"):
        fit(loaded(run), run, epochs=2, resume=True)
    assert checkpoints(run) == STEPS


def test_a_folder_that_holds_no_run_is_not_resumed(tmp_path, capsys):
    (tmp_path / "empty").mkdir()
    for name in ("empty", "none"):
        assert main(["train", "--resume", str(tmp_path / name)]) == 4
        assert f"{name} has no run; `train FILES --out" in capsys.readouterr().err


def test_a_file_of_the_users_in_an_old_checkpoint_stays_and_stops_nothing(run):
    (run / STEPS[0] / "notes.txt").write_text("mine")
    fit(loaded(run), run, epochs=2, keep=1, resume=True)
    assert (run / STEPS[0] / "notes.txt").read_text() == "mine"
    assert checkpoints(run) == [STEPS[0], "step-000000000006"]
    assert st.load(run).steps == 6


def test_a_smaller_keep_makes_room_before_the_next_save(run, monkeypatch):
    free = shutil.disk_usage
    seen = []

    def usage(path):
        seen.append(checkpoints(run))
        return free(path)

    monkeypatch.setattr(shutil, "disk_usage", usage)
    fit(loaded(run), run, epochs=2, keep=1, resume=True)
    assert seen[0] == STEPS[-1:]


def test_a_link_to_a_run_is_resumed_where_it_points(run, tmp_path):
    (tmp_path / "link").symlink_to(run)
    fit(loaded(tmp_path / "link"), tmp_path / "link", epochs=2, resume=True)
    assert st.load(run).steps == 6 and (tmp_path / "link").is_symlink()


@pytest.mark.parametrize("name", ["{}", ".{}.old"])
def test_a_link_in_the_place_of_a_checkpoint_is_refused_and_not_followed(run, tmp_path, name):
    outside = (run / STEPS[-1]).rename(tmp_path / "outside")
    (run / name.format(STEPS[-1])).symlink_to(outside)
    before = {path: path.read_bytes() for path in outside.iterdir()}
    for action in (st.load, st.load_predictor):
        with pytest.raises(CheckpointError, match="is a symbolic link, which a run never creates"):
            action(run)
    assert main(["train", "--resume", str(run), "--epochs", "2"]) == 4
    assert {path: path.read_bytes() for path in outside.iterdir()} == before


def test_a_save_does_not_follow_a_link_in_its_place(run, tmp_path):
    outside = tmp_path / "outside"
    shutil.copytree(run / STEPS[0], outside)
    (run / "step-000000000004").symlink_to(outside)
    before = {path: path.read_bytes() for path in outside.iterdir()}
    with pytest.raises(CheckpointError, match="step-0*4 is a symbolic link"):
        fit(loaded(run), run, epochs=2, resume=True)
    assert {path: path.read_bytes() for path in outside.iterdir()} == before
    assert st.load(run).steps == 3


def test_a_digit_that_changed_in_a_log_is_found(run):
    path = run / "log.jsonl"
    good, lines = path.read_text(), st.Run(run).log()
    path.write_text(good.replace('"step": 3', '"step": 2', 1))
    with pytest.raises(CheckpointError, match=r"log\.jsonl: line 1 is damaged or was edited"):
        st.Run(run).log()
    path.write_text(good[:-1] + "\v")  # the newline behind the last
    with pytest.raises(CheckpointError, match=f"line {len(lines)} is not a valid log record"):
        st.Run(run).log()
    path.write_text(good + good[:30])  # as a kill cuts it
    assert st.Run(run).log() == lines
    path.write_text(good[: good.rfind("\n", 0, -1) + 1])
    with pytest.raises(CheckpointError, match=rf"lost lines: it has {len(lines) - 1}"):
        st.Run(run).log()


def test_a_lock_with_another_name_is_not_written(run, tmp_path):
    (tmp_path / "mine").write_text("mine")
    (run / ".lock").unlink()
    os.link(tmp_path / "mine", run / ".lock")
    with pytest.raises(CheckpointError, match=r"\.lock is not a lock file of a run"):
        fit(loaded(run), run, epochs=2, resume=True)
    assert (tmp_path / "mine").read_text() == "mine"


def _pipe(path: Path) -> None:
    os.mkfifo(path)


def _link(path: Path) -> None:
    path.symlink_to("/dev/zero")


def _sparse(path: Path) -> None:
    path.touch()
    os.truncate(path, 40 << 30)


@pytest.mark.parametrize("make", [_pipe, _link, _sparse])
def test_a_log_that_is_no_file_of_lines_is_refused(run, tmp_path, capsys, make):
    (run / "log.jsonl").unlink()
    make(run / "log.jsonl")
    with pytest.raises(CheckpointError, match=r"log\.jsonl cannot be read: it is"):
        fit(loaded(run), run, epochs=2, resume=True)
    assert main(["plot", str(run), "--out", str(tmp_path / "run.png")]) == 4
    assert "log.jsonl cannot be read: it is" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["every", "keep", "log_every"])
def test_a_number_of_a_run_that_is_no_count_is_refused(tmp_path, name):
    with pytest.raises(ConfigError, match=f"Run: {name} is 0; it must be 1 or more"):
        st.Run(tmp_path / "run", **{name: 0})
    assert st.Run(tmp_path / "run", every=None).every is None


def test_a_run_without_validation_says_why_it_has_no_best(run):
    with pytest.raises(CheckpointError, match="no best checkpoint, since no validation chose one"):
        st.load(run, checkpoint="best")
