# SPDX-License-Identifier: Apache-2.0
"""Arrays in several blocks and files, written and read by threads."""

import errno
import os
import zlib

import numpy as np
import pytest

from sparsetrain import checkpoint
from sparsetrain.checkpoint import array_file, folders
from sparsetrain.errors import CheckpointError, ResourceError
from sparsetrain.system import memory
from tests.helpers import read_checkpoint

ROWS = np.random.default_rng(0).integers(0, 256, (9001, 7)).astype(np.int32)
ARRAYS = {
    "a run": ROWS,
    "columns": np.asfortranarray(ROWS),
    "big-endian": ROWS.astype(">i4"),
    "small": np.arange(3),
    "bytes": ROWS.astype(np.uint8)[:, 0],
}


@pytest.fixture(autouse=True)
def small_sizes(monkeypatch):
    """Let some hundred kilobytes be several blocks, and work for several threads."""
    monkeypatch.setattr(array_file, "_BLOCK", 8192)
    monkeypatch.setattr(array_file, "_SHARE", 1)


@pytest.mark.parametrize("piece_bytes", [1 << 30, 50_000])
def test_arrays_come_back_with_the_sums_of_their_files(tmp_path, piece_bytes):
    checkpoint.write(tmp_path / "run", ARRAYS, {}, piece_bytes=piece_bytes)
    with checkpoint.opened(tmp_path / "run") as saved:
        targets = {name: np.zeros_like(array) for name, array in ARRAYS.items()}
        saved.fill(targets)
        for entry in (entry for entries in saved._pieces.values() for entry in entries):
            assert entry.crc32 == zlib.crc32((tmp_path / "run" / entry.file).read_bytes())
    for name, array in ARRAYS.items():
        np.testing.assert_array_equal(targets[name], array)


@pytest.mark.parametrize("at", [0, 127, 4096, 100_000, -1])
def test_a_flipped_byte_in_any_block_is_found(tmp_path, at):
    checkpoint.write(tmp_path / "run", {"a": ROWS}, {})
    path = tmp_path / "run" / "000.npy"
    content = bytearray(path.read_bytes())
    content[at] ^= 1
    path.write_bytes(content)
    with pytest.raises(CheckpointError, match=r"000\.npy"):
        read_checkpoint(tmp_path / "run")


@pytest.mark.parametrize(
    "number, kind", [(errno.EIO, CheckpointError), (errno.ENOSPC, ResourceError)]
)
def test_a_thread_that_cannot_write_ends_the_save(tmp_path, monkeypatch, number, kind):
    checkpoint.write(tmp_path / "run", {"a": np.arange(5)}, {})
    make = folders.new_file

    def failing(path):
        if path.name == "003.npy":
            raise OSError(number, os.strerror(number))
        return make(path)

    monkeypatch.setattr(folders, "new_file", failing)
    with pytest.raises(kind, match="cannot be written"):
        checkpoint.write(tmp_path / "run", {"a": ROWS}, {}, piece_bytes=50_000)
    assert list(read_checkpoint(tmp_path / "run")[0]["a"]) == [0, 1, 2, 3, 4]
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


def test_a_file_that_shrinks_while_it_is_read_is_found(tmp_path):
    checkpoint.write(tmp_path / "run", {"a": ROWS}, {})
    with checkpoint.opened(tmp_path / "run") as saved:
        os.truncate(tmp_path / "run" / "000.npy", 50_000)
        with pytest.raises(CheckpointError, match="cut off while it was read"):
            saved.fill({"a": np.zeros_like(ROWS)})


@pytest.mark.parametrize("size", [1, 4097, memory.LARGE])
def test_aligned_memory_begins_on_a_page(size):
    block = memory.aligned_empty(size)
    assert block.shape == (size,) and block.ctypes.data % memory.ALIGNMENT == 0
