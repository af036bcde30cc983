# SPDX-License-Identifier: Apache-2.0
"""Locks of what is written: they tell who still writes, on NFS as well."""

import errno
import fcntl
import os
from pathlib import Path

import pytest

from sparsetrain.cli.output_files import replace_file
from sparsetrain.system import file_locks
from sparsetrain.system.file_locks import locked_draft, remove_dead, try_lock


@pytest.fixture
def nfs(monkeypatch):
    """As on NFS, what is not open for writing cannot be locked against all others."""
    lock = fcntl.flock

    def flock(descriptor, operation):
        if fcntl.fcntl(descriptor, fcntl.F_GETFL) & os.O_ACCMODE == os.O_RDONLY:
            raise OSError(errno.EBADF, "not open for writing")
        lock(descriptor, operation)

    monkeypatch.setattr(fcntl, "flock", flock)


def test_one_alone_has_the_lock_of_a_file_or_a_folder(tmp_path):
    (tmp_path / "file").touch()
    for path in (tmp_path / "file", tmp_path):
        with try_lock(path) as first, try_lock(path) as second:
            assert (first, second) == (True, False)
        with try_lock(path) as again:
            assert again


def test_a_folder_that_cannot_be_locked_is_nobodys(tmp_path, nfs):
    with try_lock(tmp_path) as held:
        assert not held


@pytest.mark.parametrize("folder", [True, False])
def test_a_draft_that_is_removed_before_it_is_locked_is_made_again(tmp_path, folder):
    make, remove = (Path.mkdir, Path.rmdir) if folder else (Path.touch, Path.unlink)
    made = []

    def make_and_meet(path):
        make(path)
        made.append(path)
        if len(made) < 3:
            remove_dead(path, remove)

    with locked_draft(tmp_path / "draft", make_and_meet):
        assert len(made) == 3
        remove_dead(tmp_path / "draft", remove)
        assert (tmp_path / "draft").exists()


def test_the_lock_of_what_was_removed_is_not_that_of_what_is_there(tmp_path, monkeypatch):
    path = tmp_path / "draft"
    path.touch()
    lock = file_locks.lock_file

    def lock_what_is_exchanged(descriptor):
        (tmp_path / "other").touch()
        os.replace(tmp_path / "other", path)
        lock(descriptor)

    monkeypatch.setattr(file_locks, "lock_file", lock_what_is_exchanged)
    remove_dead(path)
    assert path.exists()


def test_the_draft_of_one_that_was_killed_goes_and_one_being_written_stays(tmp_path, nfs):
    path, left = tmp_path / "a.csv", tmp_path / ".a.0123abcd.csv"
    left.touch()
    with replace_file(path) as draft:
        assert {*tmp_path.iterdir()} == {draft}
        with replace_file(path) as other:
            assert draft.exists()
            other.write_text("2")
        draft.write_text("1")
    assert [*tmp_path.iterdir()] == [path] and path.read_text() == "1"
