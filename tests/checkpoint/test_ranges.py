# SPDX-License-Identifier: Apache-2.0
"""Ranges of a file, written and read by threads: the bytes and sums of one pass, on any disk."""

import errno
import fcntl
import os
import zlib

import numpy as np
import pytest

from sparsetrain import checkpoint
from sparsetrain.checkpoint import in_parallel, ranges
from sparsetrain.checkpoint.crc import joined
from sparsetrain.errors import CheckpointError, ResourceError
from sparsetrain.system import memory

ROWS = np.random.default_rng(0).integers(0, 256, (9001, 7)).astype(np.int32)  # no whole sector
ARRAYS = {
    "a run": ROWS,
    "columns": np.asfortranarray(ROWS),
    "big-endian": ROWS.astype(">i4"),
    "small": np.arange(3),
    "bytes": ROWS.astype(np.uint8)[:, 0],
    "whole sectors with the header": np.zeros(8192 - 128, np.uint8),
}


@pytest.fixture(autouse=True)
def small_sizes(monkeypatch):
    """Let some hundred kilobytes be many ranges of several blocks."""
    monkeypatch.setattr(ranges, "_RANGE", 4 * 8192)
    monkeypatch.setattr(ranges, "_BLOCK", 8192)
    monkeypatch.setattr(ranges, "_LARGE", 1)
    monkeypatch.setattr(in_parallel, "_SHARE", 1)


def _no_direct_open(monkeypatch) -> None:
    monkeypatch.setattr(ranges, "_DIRECT", 0)


def _direct_open_fails(monkeypatch) -> None:
    real = os.open

    def refusing(path, flags, *rest, **options):
        if str(path).startswith("/proc/self/fd"):
            raise OSError(errno.EINVAL, "no such way")
        return real(path, flags, *rest, **options)

    monkeypatch.setattr(os, "open", refusing)


def _direct_calls_fail(monkeypatch) -> None:
    def refusing(call):
        def refuse(descriptor, *rest):
            if fcntl.fcntl(descriptor, fcntl.F_GETFL) & ranges._DIRECT:
                raise OSError(errno.EINVAL, "other sizes")
            return call(descriptor, *rest)

        return refuse

    for name in ("pwrite", "preadv"):
        monkeypatch.setattr(os, name, refusing(getattr(os, name)))


def _calls_are_short(monkeypatch) -> None:
    put, get = os.pwrite, os.preadv
    monkeypatch.setattr(os, "pwrite", lambda fd, part, at: put(fd, part[:1000], at))
    monkeypatch.setattr(os, "preadv", lambda fd, to, at, *f: get(fd, [to[0][:1000]], at, *f))


DISKS = {
    "as it is": lambda monkeypatch: None,
    "without direct access": _no_direct_open,
    "direct access cannot be opened": _direct_open_fails,
    "direct access wants other sizes": _direct_calls_fail,
    "calls do a part": _calls_are_short,
}


@pytest.mark.parametrize("disk", DISKS)
def test_arrays_come_back_with_the_sums_of_one_pass(tmp_path, monkeypatch, disk):
    DISKS[disk](monkeypatch)
    checkpoint.write(tmp_path / "run", ARRAYS, {})
    with checkpoint.opened(tmp_path / "run") as saved:
        targets = {name: np.zeros_like(array) for name, array in ARRAYS.items()}
        saved.fill(targets)
        for entries in saved._pieces.values():
            (entry,) = entries
            assert entry.crc32 == zlib.crc32((tmp_path / "run" / entry.file).read_bytes())
    for name, array in ARRAYS.items():
        np.testing.assert_array_equal(targets[name], array)
        np.testing.assert_array_equal(checkpoint.read(tmp_path / "run", mmap=True)[0][name], array)


def test_a_file_that_leaves_the_cache_is_read_from_the_disk(tmp_path):
    checkpoint.write(tmp_path / "run", {"a": ROWS}, {})
    with open(tmp_path / "run" / "000.npy", "rb") as file:
        size = os.fstat(file.fileno()).st_size
        file.read()
        if not hasattr(os, "RWF_NOWAIT") or not ranges._is_cached(file, size):
            pytest.skip("this system does not tell what it has in memory")
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        if ranges._is_cached(file, size):
            pytest.skip("a file system in memory")
    np.testing.assert_array_equal(checkpoint.read(tmp_path / "run")[0]["a"], ROWS)


@pytest.mark.parametrize("at", [0, 127, 4096, 100_000, -1])
def test_a_flipped_byte_in_any_range_is_found(tmp_path, at):
    checkpoint.write(tmp_path / "run", {"a": ROWS}, {})
    path = tmp_path / "run" / "000.npy"
    content = bytearray(path.read_bytes())
    content[at] ^= 1
    path.write_bytes(content)
    for options in ({}, {"mmap": True}):
        with pytest.raises(CheckpointError, match=r"000\.npy"):
            checkpoint.read(tmp_path / "run", **options)


@pytest.mark.parametrize(
    "number, kind", [(errno.EIO, CheckpointError), (errno.ENOSPC, ResourceError)]
)
def test_a_thread_that_cannot_write_ends_the_save(tmp_path, monkeypatch, number, kind):
    checkpoint.write(tmp_path / "run", {"a": np.arange(5)}, {})
    put = os.pwrite

    def failing(descriptor, part, at):
        if at >= 3 * ranges._RANGE:
            raise OSError(number, os.strerror(number))
        return put(descriptor, part, at)

    monkeypatch.setattr(os, "pwrite", failing)
    with pytest.raises(kind, match="cannot be written"):
        checkpoint.write(tmp_path / "run", {"a": ROWS}, {})
    assert list(checkpoint.read(tmp_path / "run")[0]["a"]) == [0, 1, 2, 3, 4]
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


def test_a_file_that_shrinks_while_it_is_read_is_found(tmp_path):
    checkpoint.write(tmp_path / "run", {"a": ROWS}, {})
    with checkpoint.opened(tmp_path / "run") as saved:
        os.truncate(tmp_path / "run" / "000.npy", 50_000)
        with pytest.raises(CheckpointError, match="cut off while it was read"):
            saved.fill({"a": np.zeros_like(ROWS)})


@pytest.mark.parametrize("sizes", [[], [0], [0, 5], [1, 1000, 3], [70_000, 0, 1, 9]])
def test_sums_of_parts_give_the_sum_of_the_whole(sizes):
    rng = np.random.default_rng(1)
    parts = [rng.bytes(size) for size in sizes]
    assert joined((zlib.crc32(part), len(part)) for part in parts) == zlib.crc32(b"".join(parts))


@pytest.mark.parametrize("size", [1, 4097, memory.LARGE])
def test_aligned_memory_begins_on_a_page(size):
    block = memory.aligned_empty(size)
    assert block.shape == (size,) and block.ctypes.data % memory.ALIGNMENT == 0
