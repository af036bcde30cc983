# SPDX-License-Identifier: Apache-2.0
"""Locks of what is written: they tell who still writes, on NFS as well."""

import errno
import fcntl
import os

import pytest

from sparsetrain.cli.output_files import replace_file
from sparsetrain.system.file_locks import try_lock


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
