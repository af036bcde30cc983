# SPDX-License-Identifier: Apache-2.0
"""An exported folder that another user could exchange or write is refused before its code runs."""

import ctypes
import os
import shutil
import subprocess
import zlib
from pathlib import Path

import numpy as np
import pytest

from sparsetrain.errors import CheckpointError
from sparsetrain.serving.delta import apply, write_delta
from sparsetrain.serving.export import export
from sparsetrain.serving.libraries import compiler
from sparsetrain.serving.model import LIBRARY, Model
from tests.helpers import slow_except
from tests.serving.logs import SCHEMA, frame, rows_of
from tests.serving.test_export import edited

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")


@pytest.fixture
def below(folder, tmp_path) -> Path:
    """An exported folder two folders below those of the test."""
    (tmp_path / "above" / "middle").mkdir(parents=True)
    return folder.rename(tmp_path / "above" / "middle" / "served")


def opened_in_c(folder: Path) -> tuple[int, str]:
    """What the library of the folder says, asked without Python's own checks."""
    library = ctypes.CDLL(str(folder / LIBRARY))
    model, error = ctypes.c_void_p(), ctypes.create_string_buffer(512)
    code = library.st_open(os.fsencode(folder), ctypes.byref(model), error)
    assert bool(model) == (code == 0)
    library.st_close(model)
    return code, error.value.decode()


def assert_refused(folder: Path, message: str) -> None:
    with pytest.raises(CheckpointError) as raised:
        Model(folder)
    assert str(raised.value) == message
    assert opened_in_c(folder) == (1, message)


@pytest.mark.parametrize("bits", [0o020, 0o002])
@pytest.mark.parametrize("name", [".", "..", "../..", "model.so", "000.bin", LIBRARY])
def test_what_others_may_write_is_refused_at_any_height(below, name, bits):
    assert opened_in_c(below) == (0, "")
    open_to_others = Path(os.path.normpath(below / name))
    open_to_others.chmod(0o755 | bits)
    assert_refused(below, f"{open_to_others}: other users may write it: chmod go-w")


def test_names_below_a_sticky_folder_are_those_of_who_made_them(below):
    below.parent.chmod(0o1777)
    assert Model(below).columns and opened_in_c(below) == (0, "")


@needs_root
@pytest.mark.parametrize("name", [".", "..", "../..", LIBRARY, "000.bin"])
def test_what_belongs_to_another_user_is_refused(below, name):
    foreign = Path(os.path.normpath(below / name))
    os.chown(foreign, 12345, 12345)
    assert_refused(below, f"{foreign}: it belongs to another user: chown it")


def test_no_link_is_followed_below_the_folder(below):
    for name in (LIBRARY, "000.bin", "manifest.txt"):
        (below / name).rename(below.parent / name)
        os.symlink(below.parent / name, below / name)
        with pytest.raises(CheckpointError, match=name):
            Model(below)
        os.replace(below.parent / name, below / name)
    os.symlink(below, below.with_name("current"))
    assert Model(below.with_name("current")).columns


def test_no_code_runs_before_all_is_checked(below, tmp_path):
    source, marker = tmp_path / "foreign.c", tmp_path / "it ran"
    source.write_text(
        "#include <fcntl.h>\n"
        f'__attribute__((constructor)) static void run(void) {{ open("{marker}", O_CREAT, 0600); }}'
    )
    about = (below / LIBRARY).stat().st_size, zlib.crc32((below / LIBRARY).read_bytes())
    subprocess.run([*compiler(), "-shared", "-fPIC", source, "-o", below / LIBRARY], check=True)
    made = (below / LIBRARY).read_bytes()
    edited(below, "\t{}\t{:08x}".format(*about), f"\t{len(made)}\t{zlib.crc32(made):08x}")
    for name in ("..", "."):
        (below / name).chmod(0o775)
        with pytest.raises(CheckpointError, match="other users may write it"):
            Model(below)
        (below / name).chmod(0o755)
    assert not marker.exists()
    with pytest.raises(AttributeError):
        Model(below)
    assert marker.exists()  # it would have run


@pytest.fixture
def umask(request):
    before = os.umask(request.param)
    yield request.param
    os.umask(before)


@pytest.mark.parametrize("umask", slow_except([0o000, 0o077], [0o000, 0o002, 0o077]), indirect=True)
def test_a_folder_is_its_owners_alone_under_any_umask(exported, tmp_path, umask):
    trainer, _ = exported["ids"]
    place = tmp_path / "new" / "folders"
    export(trainer, place / "older", cpu="native")
    users = trainer.table("user")
    changed = users.copy()
    changed[3] += 1
    trainer.load_table("user", changed)
    try:
        export(trainer, place / "delta", cpu="native", since=place / "older")
        apply(place / "older", place / "delta", place / "newer")
        expected = trainer.predict(frame(rows_of(9, 1), SCHEMA))
    finally:
        trainer.load_table("user", users)
    np.testing.assert_array_equal(Model(place / "newer").predict(rows_of(9, 1)), expected)
    for path in [place.parent, *place.parent.rglob("*")]:
        mode = path.stat().st_mode & 0o777
        assert not mode & 0o022 and not mode & umask & 0o077, path


def test_a_delta_may_be_of_folders_that_others_write(exported, folder, tmp_path):
    """It is data until it is served."""
    folder.chmod(0o777)
    write_delta(folder, exported["ids"][1], tmp_path / "delta")
    apply(folder, tmp_path / "delta", tmp_path / "made")
    assert Model(tmp_path / "made").columns
    shutil.rmtree(tmp_path / "made")
