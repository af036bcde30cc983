# SPDX-License-Identifier: Apache-2.0
"""A checkpoint comes back whole or not at all, whatever happens to the process or to the files."""

import errno
import json
import os
import re
import shutil
import tracemalloc
from collections import namedtuple
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from sparsetrain import checkpoint
from sparsetrain.checkpoint import folders, reading
from sparsetrain.checkpoint import manifest as manifest_module
from sparsetrain.checkpoint.array_file import DTYPES
from sparsetrain.errors import CheckpointError, ResourceError
from tests.helpers import read_checkpoint

OLD = {"table": np.arange(12, dtype=np.float32).reshape(4, 3), "step": np.int64(1)}
NEW = {"table": -np.arange(6, dtype=np.float32).reshape(2, 3), "ids": np.arange(5)}


def assert_same_arrays(got: dict, expected: dict) -> None:
    assert list(got) == list(expected)
    for name, array in expected.items():
        np.testing.assert_array_equal(got[name], array)
        assert got[name].dtype.name == np.asarray(array).dtype.name
        assert got[name].shape == np.shape(array)


def saved(folder: Path, arrays: dict = OLD, about: dict | None = None) -> Path:
    checkpoint.write(folder, arrays, about or {"epoch": 1})
    return folder


def neighbours(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.parent.iterdir())


# --- what comes back


def test_every_dtype_comes_back(tmp_path):
    arrays = {name: np.arange(7).astype(dtype) for name, dtype in DTYPES.items()}
    arrays["float32"][:4] = [np.nan, -0.0, np.inf, 1e-45]
    got, _ = read_checkpoint(saved(tmp_path / "run", arrays))
    assert_same_arrays(got, arrays)
    assert got["float32"].tobytes() == arrays["float32"].tobytes()


BASE = np.arange(24, dtype=np.int32).reshape(4, 6)
LAYOUTS = {
    "scalar": np.array(2.5),
    "one element": np.ones(1),
    "no rows": np.empty((0, 4), np.float32),
    "no columns": np.empty((4, 0), np.float32),
    "Fortran order": np.asfortranarray(BASE),
    "transposed": BASE.T,
    "strided": BASE[::2, 1::3],
    "reversed": BASE[::-1, ::-1],
    "broadcast": np.broadcast_to(BASE[:1], (3, 6)),
    "big-endian": BASE.astype(">i4"),
    "misaligned": np.frombuffer(b"\0" + BASE.tobytes(), np.int32, offset=1),
    "four axes": np.arange(24.0).reshape(2, 3, 2, 2),
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_layout_comes_back_in_c_order(tmp_path, layout):
    got, _ = read_checkpoint(saved(tmp_path / "run", {"a": LAYOUTS[layout]}))
    assert_same_arrays(got, {"a": LAYOUTS[layout]})
    assert got["a"].flags.c_contiguous
    np.testing.assert_array_equal(np.load(tmp_path / "run" / "000.npy"), LAYOUTS[layout])


def test_arrays_that_were_read_can_be_written_to(tmp_path):
    got, _ = read_checkpoint(saved(tmp_path / "run"))
    got["table"][:] = 0.0


def test_the_manifest_comes_back(tmp_path):
    about = {"lr": 0.1, "names": ["é", "\ud800"], "deep": {"none": None, "yes": True}, "n": 2**70}
    checkpoint.write(tmp_path / "run", {}, about)
    assert read_checkpoint(tmp_path / "run") == ({}, about)


def test_any_name_of_an_array_is_kept_but_never_used_as_a_file_name(tmp_path):
    arrays = dict.fromkeys(["../../etc/passwd", "a/b", "C:\\x", "é\n", "manifest.json"], np.ones(1))
    got, _ = read_checkpoint(saved(tmp_path / "run", arrays))
    assert_same_arrays(got, arrays)
    files = sorted(path.name for path in tmp_path.rglob("*") if path.is_file())
    assert files == ["000.npy", "001.npy", "002.npy", "003.npy", "004.npy", "manifest.json"]


def test_folders_above_are_made_and_links_are_followed(tmp_path):
    saved(tmp_path / "a" / "b" / "run")
    (tmp_path / "latest").symlink_to(tmp_path / "a" / "b" / "run")
    saved(tmp_path / "latest", NEW)
    assert_same_arrays(read_checkpoint(tmp_path / "a" / "b" / "run")[0], NEW)
    assert (tmp_path / "latest").is_symlink()


def test_writing_and_checking_hold_one_block_in_memory(tmp_path):
    arrays = {"f": np.zeros((3000, 4000), np.float32).T}  # 48 MB, and no block of it contiguous
    tracemalloc.start()
    saved(tmp_path / "run", arrays)
    with checkpoint.opened(tmp_path / "run") as written:
        written.check()
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 40e6


LARGE = np.arange(7000, dtype=np.int32).reshape(1000, 7)
PIECES = {
    # What is saved, and the rows of each of its files when a file holds about 1,000 bytes.
    "rows that divide": (LARGE[:70], [[0, 35], [35, 70]]),
    "rows that do not": (LARGE[:40], [[0, 35], [35, 40]]),
    "a row larger than a piece": (np.ones((2, 600)), [[0, 1], [1, 2]]),
    "no rows": (LARGE[:0], [[0, 0]]),
    "no axes": (np.array(3.0), [[0, 1]]),
    "rows without bytes": (LARGE[:50, :0], [[0, 50]]),
    "Fortran order": (np.asfortranarray(LARGE[:40]), [[0, 35], [35, 40]]),
}


@pytest.mark.parametrize("case", PIECES)
def test_a_large_array_is_cut_by_rows_and_comes_back_whole(tmp_path, case):
    array, rows = PIECES[case]
    checkpoint.write(tmp_path / "run", {"a": array, "b": np.ones(3)}, {}, piece_bytes=1000)
    listed = json.loads((tmp_path / "run" / "manifest.json").read_text())["arrays"]
    assert [entry["rows"] for entry in listed if entry["name"] == "a"] == rows
    got, _ = read_checkpoint(tmp_path / "run")
    assert_same_arrays(got, {"a": array, "b": np.ones(3)})


def test_a_check_reads_every_piece_and_keeps_none(tmp_path):
    checkpoint.write(tmp_path / "run", {"a": LARGE, "b": np.ones(3)}, {}, piece_bytes=9000)
    with checkpoint.opened(tmp_path / "run") as good:
        good.check()
    path = tmp_path / "run" / "003.npy"
    path.write_bytes(path.read_bytes()[:-1] + b"\xff")
    with (
        checkpoint.opened(tmp_path / "run") as bad,
        pytest.raises(CheckpointError, match=r"003.npy \(array 'a'\) is damaged"),
    ):
        bad.check()


@pytest.mark.parametrize("layout", LAYOUTS)
def test_an_array_is_read_into_memory_of_any_layout(tmp_path, layout):
    wanted = LAYOUTS[layout]
    checkpoint.write(tmp_path / "run", {"a": wanted}, {}, piece_bytes=40)
    out = np.array(wanted)  # of the same strides and byte order where that can be written to
    if layout == "misaligned":
        out = np.frombuffer(bytearray(1 + wanted.nbytes), np.int32, offset=1).reshape(wanted.shape)
    out[...] = 0
    with checkpoint.opened(tmp_path / "run") as found:
        found.fill({"a": out})
    np.testing.assert_array_equal(out, wanted)


def test_memory_of_another_kind_is_refused(tmp_path):
    with (
        checkpoint.opened(saved(tmp_path / "run")) as found,
        pytest.raises(CheckpointError, match="saved array 'table' is"),
    ):
        found.fill({"table": np.empty((4, 3))})


def test_no_arrays_are_filled_too(tmp_path):
    with checkpoint.opened(saved(tmp_path / "run")) as found:
        found.fill({})


# --- killed at any step


class Killed(BaseException):
    """Stands for SIGKILL: after it no call of this process changes anything."""


def die_at(monkeypatch: pytest.MonkeyPatch, step: int) -> Callable[[], int]:
    """Let the first `step` changes of the disk happen and none after; return their counter."""
    counter = iter(range(10**6))
    last = [0]

    def dying(call: Callable) -> Callable:
        def wrapper(*args, **kwargs):
            last[0] = next(counter) + 1
            if last[0] > step:
                raise Killed
            return call(*args, **kwargs)

        return wrapper

    for name in ("mkdir", "rename", "fsync", "unlink", "rmdir"):
        monkeypatch.setattr(os, name, dying(getattr(os, name)))
    return lambda: last[0]


def killed_save(folder: Path, arrays: dict, step: int) -> bool:
    """Save and die after `step` changes; return whether the save was over before."""
    with pytest.MonkeyPatch.context() as patch:
        die_at(patch, step)
        try:
            checkpoint.write(folder, arrays, {"epoch": 2})
        except Killed:
            return False
    return True


def steps_of_a_save(folder: Path) -> int:
    with pytest.MonkeyPatch.context() as patch:
        count = die_at(patch, 10**6)
        checkpoint.write(folder, NEW, {"epoch": 2})
        return count()


def test_killed_while_replacing_the_old_or_the_new_one_is_there(tmp_path):
    steps = steps_of_a_save(saved(tmp_path / "count" / "run"))
    outcomes = []
    for step in range(steps):
        folder = saved(tmp_path / str(step) / "run")
        assert not killed_save(folder, NEW, step)
        arrays, about = read_checkpoint(folder)
        assert about["epoch"] in (1, 2)
        assert_same_arrays(arrays, OLD if about["epoch"] == 1 else NEW)
        outcomes.append(about["epoch"])
    assert outcomes == sorted(outcomes)
    assert set(outcomes) == {1, 2}


def test_killed_while_saving_for_the_first_time_there_is_nothing_or_all(tmp_path):
    for step in range(steps_of_a_save(tmp_path / "count" / "run")):
        folder = tmp_path / str(step) / "run"
        folder.parent.mkdir()
        killed_save(folder, NEW, step)
        if folder.exists():
            assert_same_arrays(read_checkpoint(folder)[0], NEW)
        else:
            with pytest.raises(CheckpointError, match="there is no checkpoint at"):
                read_checkpoint(folder)


def test_the_next_save_clears_what_a_killed_one_left(tmp_path):
    for step in range(steps_of_a_save(saved(tmp_path / "count" / "run"))):
        folder = saved(tmp_path / str(step) / "run")
        killed_save(folder, NEW, step)
        third = saved(folder, {"c": np.ones(3)}, {"epoch": 3})
        assert neighbours(folder) == ["run"]
        assert read_checkpoint(third)[1] == {"epoch": 3}


def test_killed_twice_in_a_row_a_save_is_still_there(tmp_path):
    steps = steps_of_a_save(saved(tmp_path / "count" / "run")) + 3
    for first in range(steps):
        for second in range(steps):
            folder = saved(tmp_path / f"{first}-{second}" / "run")
            killed_save(folder, NEW, first)
            killed_save(folder, NEW, second)
            arrays, about = read_checkpoint(folder)
            assert_same_arrays(arrays, OLD if about["epoch"] == 1 else NEW)


def test_a_half_deleted_old_one_never_comes_back(tmp_path):
    left = set()
    for step in range(steps_of_a_save(saved(tmp_path / "count" / "run"))):
        folder = saved(tmp_path / str(step) / "run")
        killed_save(folder, NEW, step)
        shutil.rmtree(folder, ignore_errors=True)  # by its owner
        folders.restore(folder)
        left.add(folder.exists())
        if folder.exists():
            assert_same_arrays(read_checkpoint(folder)[0], OLD)
    assert left == {True, False}


@pytest.mark.parametrize(
    ("number", "kind"), [(errno.ENOSPC, ResourceError), (errno.EIO, CheckpointError)]
)
@pytest.mark.parametrize("call", ["fsync", "mkdir", "rename"])
def test_a_failed_save_leaves_the_old_one_and_no_litter(tmp_path, monkeypatch, call, number, kind):
    folder = saved(tmp_path / "run")

    def fail(*args, **kwargs):
        raise OSError(number, os.strerror(number))

    with monkeypatch.context() as patch:
        patch.setattr(os, call, fail)
        with pytest.raises(kind, match=re.escape(f"{folder}: cannot be written: ")):
            checkpoint.write(folder, NEW, {})
    assert neighbours(folder) == ["run"]
    assert_same_arrays(read_checkpoint(folder)[0], OLD)


def test_a_failed_second_rename_puts_the_old_one_back(tmp_path, monkeypatch):
    folder = saved(tmp_path / "run")
    rename = os.rename

    def fail(source, target):
        if ".new-" in str(source):
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        rename(source, target)

    monkeypatch.setattr(os, "rename", fail)
    with pytest.raises(CheckpointError, match="cannot be written"):
        checkpoint.write(folder, NEW, {})
    assert neighbours(folder) == ["run"]
    assert_same_arrays(read_checkpoint(folder)[0], OLD)


def test_the_draft_of_a_save_under_way_is_left_alone(tmp_path):
    with folders.draft(tmp_path / "run") as draft:
        saved(tmp_path / "run")
        assert draft.is_dir()
    assert neighbours(tmp_path / "run") == ["run"]


def test_a_save_during_a_read_gives_the_old_or_the_new_one(tmp_path, monkeypatch):
    folder = saved(tmp_path / "run")
    parse, calls = reading.parse, []

    def replace_then_parse(text: bytes):
        if not calls:
            calls.append(1)
            saved(folder, NEW, {"epoch": 2})
        return parse(text)

    monkeypatch.setattr(reading, "parse", replace_then_parse)
    arrays, about = read_checkpoint(folder)
    assert about == {"epoch": 2}
    assert_same_arrays(arrays, NEW)


# --- what is refused before anything is written


def make_file(folder: Path) -> None:
    folder.write_text("mine")


def make_notes(folder: Path) -> None:
    folder.mkdir()
    (folder / "notes.txt").write_text("mine")


def make_notes_in_checkpoint(folder: Path) -> None:
    (saved(folder) / "notes.txt").write_text("mine")


def make_arrays(folder: Path) -> None:
    folder.mkdir()
    np.save(folder / "000.npy", np.ones(3))


def make_other_manifest(folder: Path) -> None:
    folder.mkdir()
    (folder / "manifest.json").write_text('{"name": "an app"}')


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (make_file, "is a file: choose another folder"),
        (make_notes, "is not replaced: it holds 'notes.txt'"),
        (make_notes_in_checkpoint, "is not replaced: it holds 'notes.txt'"),
        (make_arrays, "is not replaced: it is not a checkpoint of sparsetrain"),
        (make_other_manifest, "is not replaced: it is not a checkpoint of sparsetrain"),
    ],
)
def test_what_is_not_a_checkpoint_is_not_replaced(tmp_path, make, message):
    folder = tmp_path / "run"
    make(folder)
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(CheckpointError, match=re.escape(f"{folder} {message}")):
        checkpoint.write(folder, NEW, {})
    assert sorted(tmp_path.rglob("*")) == before


def test_an_empty_folder_is_a_fine_target(tmp_path):
    (tmp_path / "run").mkdir()
    assert_same_arrays(read_checkpoint(saved(tmp_path / "run"))[0], OLD)


def test_the_root_is_no_target():
    with pytest.raises(CheckpointError, match="/ cannot be a checkpoint"):
        checkpoint.write("/", NEW, {})


@pytest.mark.parametrize(
    ("arrays", "about", "message"),
    [
        ({"o": np.array([{}])}, {}, "array 'o' is object with 1 axes: only booleans"),
        ({"s": np.array(["x"])}, {}, "array 's' is str"),
        ({"c": np.ones(2, complex)}, {}, "array 'c' is complex128"),
        ({"d": np.zeros(2, "datetime64[s]")}, {}, "array 'd' is datetime64[s]"),
        ({"r": np.zeros(2, [("x", int)])}, {}, "array 'r' is void"),
        ({"": np.ones(2)}, {}, "an array has the name ''"),
        ({3: np.ones(2)}, {}, "an array has the name 3"),
        ({}, {"a": {1: 2}}, "manifest['a'] has the key 1: JSON keys are text"),
        ({}, {"a": [0, float("nan")]}, "manifest['a'][1] is nan, which JSON cannot hold"),
        ({}, {"a": np.ones(2)}, "manifest['a'] is of type ndarray"),
        ({}, {"a": np.float64(2)}, "manifest['a'] is of type float64"),
        ({}, {"a": "x" * (17 << 20)}, "the manifest has 17"),
        ({}, {"a": json.loads("[" * 60 + "]" * 60)}, "manifest has more than 32 nested levels"),
    ],
)
def test_what_cannot_be_kept_is_named_and_nothing_is_written(tmp_path, arrays, about, message):
    with pytest.raises(CheckpointError, match=re.escape(message)):
        checkpoint.write(tmp_path / "run", arrays, about)
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk_is_found_before_writing(tmp_path, monkeypatch):
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage(10**9, 10**9, 4096))
    with pytest.raises(ResourceError, match=r"run needs 1\.\d MB, but the disk has .* MB free"):
        checkpoint.write(tmp_path / "deep" / "run", NEW, {})
    assert list(tmp_path.iterdir()) == []


# --- damaged or hostile files


def test_a_flipped_bit_anywhere_is_found_or_harmless(tmp_path):
    folder = saved(tmp_path / "run")
    for path in sorted(folder.iterdir()):
        good = path.read_bytes()
        for position in range(len(good)):
            bad = bytearray(good)
            bad[position] ^= 1 << (position % 8)
            path.write_bytes(bad)
            try:
                arrays, about = read_checkpoint(folder)
            except CheckpointError as error:
                assert str(path) in str(error)
            else:  # white space between tokens
                assert path.name == "manifest.json"
                assert about == {"epoch": 1}
                assert_same_arrays(arrays, OLD)
        path.write_bytes(good)


@pytest.mark.parametrize("name", ["000.npy", "001.npy", "manifest.json"])
def test_a_file_cut_off_or_grown_is_found(tmp_path, name):
    path = saved(tmp_path / "run") / name
    good = path.read_bytes()
    for bad in (good[:0], good[:1], good[: len(good) // 2], good[:-4], good + b"xxxx"):
        path.write_bytes(bad)
        with pytest.raises(CheckpointError, match=re.escape(str(path))):
            read_checkpoint(tmp_path / "run")


@pytest.mark.parametrize("name", ["000.npy", "manifest.json"])
def test_a_missing_file_is_named(tmp_path, name):
    (saved(tmp_path / "run") / name).unlink()
    with pytest.raises(
        CheckpointError, match=f"run is not a complete checkpoint: {name} is missing"
    ):
        read_checkpoint(tmp_path / "run")


def swap_for_link(path: Path) -> None:
    shutil.copy(path, path.parent.parent / "elsewhere")
    path.unlink()
    path.symlink_to(path.parent.parent / "elsewhere")


def swap_for_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def swap_for_pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


@pytest.mark.parametrize("name", ["000.npy", "manifest.json"])
@pytest.mark.parametrize("swap", [swap_for_link, swap_for_folder, swap_for_pipe])
def test_only_regular_files_are_read(tmp_path, swap, name):
    swap(saved(tmp_path / "run") / name)
    with pytest.raises(CheckpointError, match=f"{name} is not a regular file"):
        read_checkpoint(tmp_path / "run")


def test_a_place_without_checkpoint_says_so(tmp_path):
    with pytest.raises(CheckpointError, match=f"there is no checkpoint at {tmp_path / 'no'}"):
        read_checkpoint(tmp_path / "no")
    with pytest.raises(CheckpointError, match=r"manifest\.json is missing"):
        read_checkpoint(tmp_path)
    make_file(tmp_path / "file")
    with pytest.raises(CheckpointError, match="file cannot be read: Not a directory"):
        read_checkpoint(tmp_path / "file")


def forge(folder: Path, change: Callable[[dict], object]) -> None:
    """Change the manifest and give it a checksum that fits."""
    body = json.loads((folder / "manifest.json").read_text())
    body.pop("crc32")
    change(body)
    body["crc32"] = manifest_module._checksum(body)
    (folder / "manifest.json").write_text(json.dumps(body))


def nested(levels: int) -> dict:
    return {"a": nested(levels - 1)} if levels else {}


def of_array(**fields: object) -> Callable[[dict], object]:
    return lambda body: body["arrays"][0].update(fields)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (of_array(file="../run/000.npy"), "array 0 has the invalid file '../run/000.npy'"),
        (of_array(file="/etc/passwd"), "array 0 has the invalid file '/etc/passwd'"),
        (of_array(file="000.npy\n"), "array 0 has the invalid file '000.npy\\n'"),
        (of_array(file="001.npy"), "two arrays have the same file"),
        (of_array(name="step"), "two arrays have the same name"),
        (of_array(name=""), "array 0 has the invalid name ''"),
        (of_array(dtype="object"), "array 0 has the invalid dtype 'object'"),
        (of_array(dtype=["float32"]), "array 0 has the invalid dtype ['float32']"),
        (of_array(shape=[-4, -3]), "array 0 has the invalid shape [-4, -3]"),
        (of_array(shape=[4, 3.0]), "array 0 has the invalid shape [4, 3.0]"),
        (of_array(shape=[True] * 2), "array 0 has the invalid shape [True, True]"),
        (of_array(shape=[1] * 33), "array 0 has the invalid shape [1, 1,"),
        (of_array(shape=[2**40, 2**40]), "array 0 has the invalid shape [1099511627776,"),
        (of_array(shape=[0, 2**61]), "array 0 has the invalid shape [0, 2305843009213693952]"),
        (of_array(shape=[4, 2**40]), "array 'table' cannot have 176 bytes"),
        (of_array(shape=[3, 4]), "array 0 has invalid rows [0, 4] of shape [3, 4]"),
        (of_array(shape=[4, 3, 1]), "000.npy (array 'table'): the header does not match float32"),
        (of_array(shape=[]), "array 0 has invalid rows [0, 4] of shape []"),
        (of_array(shape=[8, 3]), "rows 4 and later of array 'table' are missing"),
        (of_array(shape=[8, 3], rows=[4, 8]), "two arrays have the same name 'table'"),
        (of_array(rows=[0]), "array 0 has the invalid rows [0]"),
        (of_array(rows=[4, 0]), "array 0 has the invalid rows [4, 0]"),
        (of_array(dtype="int32"), "000.npy (array 'table'): the header does not match int32"),
        (of_array(bytes=2**70), "array 0 has the invalid bytes 1180591620717411303424"),
        (of_array(crc32=-1), "array 0 has the invalid crc32 -1"),
        (of_array(pickle=True), "array 0 must have the fields name, file,"),
        (lambda body: body.update(version=3), "format version 3 is unknown"),
        (lambda body: body.update(version=True), "format version True is unknown"),
        (lambda body: body["arrays"][0].pop("rows"), "array 0 must have the fields"),
        (lambda body: body.update(manifest=nested(40)), "more than 32 nested levels"),
        (lambda body: body.update(version="1"), "format version '1' is unknown"),
        (lambda body: body.update(format="zip"), "not the manifest of a sparsetrain checkpoint"),
        (lambda body: body.update(arrays={}), "`arrays` must be a list"),
        (lambda body: body.update(arrays=[3]), "array 0 must have the fields"),
        (lambda body: body.update(manifest=[]), "`manifest` an object"),
    ],
)
def test_a_forged_manifest_is_refused(tmp_path, change, message):
    forge(saved(tmp_path / "run"), change)
    with pytest.raises(CheckpointError, match=re.escape(message)):
        read_checkpoint(tmp_path / "run")


@pytest.mark.parametrize(
    "text", [b"", b"[]", b"\xff\xfe", b"[" * 100_000, b'{"a": NaN}', b"null", b"1" * 5000]
)
def test_a_manifest_that_is_no_object_is_refused(tmp_path, text):
    (saved(tmp_path / "run") / "manifest.json").write_bytes(text)
    with pytest.raises(CheckpointError, match=r"manifest\.json: it is not"):
        read_checkpoint(tmp_path / "run")


def test_a_manifest_beyond_the_limit_is_not_read_to_its_end(tmp_path):
    with open(saved(tmp_path / "run") / "manifest.json", "ab") as file:
        file.truncate(1 << 40)
    with pytest.raises(CheckpointError, match=r"manifest\.json: "):
        read_checkpoint(tmp_path / "run")


def test_a_pickle_in_an_array_file_is_never_loaded(tmp_path):
    folder = saved(tmp_path / "run")
    size = (folder / "000.npy").stat().st_size
    np.save(folder / "000.npy", np.array([print]), allow_pickle=True)
    data = (folder / "000.npy").read_bytes().ljust(size, b"\0")[:size]
    (folder / "000.npy").write_bytes(data)
    with pytest.raises(CheckpointError, match="the header does not match float32"):
        read_checkpoint(folder)
