# SPDX-License-Identifier: Apache-2.0
"""Compiled programs come back from disk, and only those that this user put there."""

import os
import shutil
import subprocess
import sys

import numpy as np
import pytest
import tvm
from tvm import relax, te
from tvm.script import ir as I
from tvm.script import relax as R

import sparsetrain as st
from sparsetrain.compiler import program, program_cache
from sparsetrain.kernels.relax_op import define_op
from sparsetrain.runtime import library_cache
from sparsetrain.runtime.targets import resolve_target

pytestmark = pytest.mark.skipif(os.name != "posix", reason="file modes are POSIX")


@I.ir_module
class Double:
    """Two times x."""

    @R.function
    def main(x: R.Tensor(("B",), "float32")) -> R.Tensor(("B",), "float32"):
        with R.dataflow():
            y = R.add(x, x)
            R.output(y)
        return y


@pytest.fixture
def compiled(monkeypatch):
    """How often a program was really compiled."""
    calls, compile_relax = [], program.compile_relax

    def counting(*arguments):
        calls.append(1)
        return compile_relax(*arguments)

    monkeypatch.setattr(program, "compile_relax", counting)
    return calls


def run():
    result = st.Program(Double, "main", "llvm")({}, {"x": np.arange(3, dtype="float32")})
    assert result.numpy().tolist() == [0, 2, 4]


def test_a_second_program_is_not_compiled(place, compiled):
    run()
    run()
    assert len(compiled) == 1
    assert len(list(place.glob("*.so"))) == 1


def test_a_step_is_compiled_once_however_often_its_kernels_are_written(place, compiled):
    for number in range(4):
        model = st.models.DLRM(rows=[5, 3], dim=4, bottom=(), top=(8,), num_dense=13)
        st.Trainer(model, st.optim.sgd(0.1), target="cpu").compile()
        if number == 0:
            first = len(compiled)
    assert len(compiled) == first > 0


def test_folder_and_files_belong_to_the_user_alone(place):
    run()
    assert place.stat().st_mode & 0o777 == 0o700
    assert next(place.glob("*.so")).stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("damage", [b"", b"\x7fELF", None], ids=["empty", "cut", "flipped"])
def test_a_damaged_file_is_compiled_again(place, compiled, damage):
    run()
    file = next(place.glob("*.so"))
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.unlink()  # a new file: the old one is mapped by this process
    file.write_bytes(bytes(content) if damage is None else damage)
    file.chmod(0o600)
    run()
    assert len(compiled) == 2


def test_a_file_that_others_may_write_is_not_loaded(place, compiled):
    run()
    next(place.glob("*.so")).chmod(0o666)
    run()
    assert len(compiled) == 2


def test_a_folder_that_others_may_write_is_not_used(place):
    place.chmod(0o777)
    assert library_cache.cache_folder() is None


@pytest.mark.parametrize("height", [1, 2])
@pytest.mark.parametrize("bits", [0o020, 0o002])
def test_a_folder_that_others_may_exchange_is_not_used(tmp_path, monkeypatch, bits, height):
    place = tmp_path / "above" / "middle" / "cache"
    monkeypatch.setenv("SPARSETRAIN_CACHE", str(place))
    above = place.parents[height - 1]
    assert library_cache.cache_folder() is not None
    for mode, used in ((0o755 | bits, False), (0o1755 | bits, True), (0o755, True)):
        above.chmod(mode)
        assert (library_cache.cache_folder() is not None) == used
    above.chmod(0o755 | bits)
    assert library_cache.locate() == f"{above}: other users may write it: chmod go-w"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives folders away")
@pytest.mark.parametrize("height", [0, 1, 2])
def test_a_folder_below_one_of_another_user_is_not_used(tmp_path, monkeypatch, height):
    place = tmp_path / "above" / "middle" / "cache"
    monkeypatch.setenv("SPARSETRAIN_CACHE", str(place))
    assert library_cache.cache_folder() is not None
    foreign = [place, *place.parents][height]
    os.chown(foreign, 12345, 12345)
    assert library_cache.locate() == f"{foreign}: it belongs to another user: chown it"


def test_folders_that_the_cache_makes_are_the_users_alone_under_any_umask(tmp_path, monkeypatch):
    monkeypatch.setenv("SPARSETRAIN_CACHE", str(tmp_path / "above" / "cache"))
    before = os.umask(0o000)
    try:
        assert library_cache.cache_folder() is not None
    finally:
        os.umask(before)
    assert (tmp_path / "above").stat().st_mode & 0o777 == 0o755


def test_a_user_without_a_home_has_no_cache(monkeypatch):
    def home():
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("SPARSETRAIN_CACHE", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(library_cache.Path, "home", home)
    assert library_cache.cache_folder() is None


def test_a_link_is_followed_to_a_folder_of_this_users(tmp_path, monkeypatch):
    (tmp_path / "real").mkdir(mode=0o700)
    (tmp_path / "link").symlink_to(tmp_path / "real")
    monkeypatch.setenv("SPARSETRAIN_CACHE", str(tmp_path / "link"))
    assert library_cache.cache_folder().samefile(tmp_path / "real")
    (tmp_path / "real").chmod(0o770)
    assert "/real: other users may write it" in library_cache.locate()


def test_what_is_exchanged_after_the_check_is_not_loaded(tmp_path, place, compiled):
    run()
    folder = library_cache.cache_folder()
    (key,) = {path.name.rpartition("-")[0] for path in place.glob("*.so")}
    place.rename(tmp_path / "moved")
    shutil.copytree(tmp_path / "moved", place)
    for planted in place.glob("*.so"):
        planted.write_bytes(b"another library")
    assert library_cache.load(folder, key) is not None


def test_empty_name_turns_the_cache_off(monkeypatch, compiled):
    monkeypatch.setenv("SPARSETRAIN_CACHE", "")
    run()
    run()
    assert len(compiled) == 2


def test_target_and_module_decide_the_key(monkeypatch):
    generic, host = (resolve_target(name) for name in ("llvm", "cpu"))
    other = tvm.IRModule({"other": Double["main"].with_attr("global_symbol", "other")})
    keys = [
        program_cache.digest(Double, generic),
        program_cache.digest(Double, host),
        program_cache.digest(other, generic),
    ]
    assert len(set(keys)) == 3
    assert program_cache.digest(Double, generic) == keys[0]
    monkeypatch.setattr(library_cache, "llvm_version_major", lambda **_: 1)
    assert program_cache.digest(Double, generic) != keys[0]


def test_the_least_recently_used_files_go_first(place, monkeypatch):
    monkeypatch.setattr(library_cache, "MAX_PROGRAMS", 2)
    for age in range(4):
        file = place / f"{age:032d}-{'0' * 16}.so"
        file.write_bytes(b"")
        os.utime(file, (1000 - age, 1000 - age))
    run()
    assert sorted(file.name[:32] for file in place.glob("00000000*.so")) == [f"{0:032d}"]


def test_programs_are_kept_and_used_where_the_clock_went_back(place, monkeypatch, compiled):
    monkeypatch.setattr(library_cache, "MAX_PROGRAMS", 2)
    for number in range(2):
        file = place / f"{number:032d}-{'0' * 16}.so"
        file.write_bytes(b"")
        os.utime(file, (1 << 33, 1 << 33))  # written when the clock was ahead
    run()
    kept = next(file for file in place.glob("*.so") if file.stat().st_size)
    os.utime(kept, (1 << 33, 1 << 33))
    run()
    assert len(compiled) == 1


def test_two_processes_may_race(place):
    script = "from tests.compiler.test_program_cache import run; run()"
    racers = [subprocess.Popen([sys.executable, "-c", script]) for _ in range(2)]
    assert [racer.wait() for racer in racers] == [0, 0]
    assert not [entry for entry in place.iterdir() if entry.is_dir()]


def test_nothing_is_written_to_stderr(place, capfd):
    run()
    run()
    assert capfd.readouterr().err == ""


def with_constant(values):
    """x plus a tensor that the module holds."""
    x = relax.Var("x", relax.TensorType((3,), "float32"))
    builder = relax.BlockBuilder()
    with builder.function("main", [x]):
        with builder.dataflow():
            out = builder.emit_output(relax.op.add(x, relax.const(np.array(values, "float32"))))
        builder.emit_func_output(out)
    return builder.get()


def test_constants_of_the_module_decide_the_key(place):
    results = [
        st.Program(with_constant(values), "main", "llvm")({}, {"x": np.zeros(3)}).numpy().tolist()
        for values in ([1, 2, 3], [4, 5, 6])
    ]
    assert results == [[1, 2, 3], [4, 5, 6]]


def test_what_a_users_operator_becomes_decides_the_key():
    factor = 2.0

    def kernel(x):
        return te.compute(x.shape, lambda i: x[i] * tvm.tirx.const(factor, "float32"))

    scaled = define_op(
        "test_scaled",
        ("x",),
        lambda call: call.args[0].ty,
        lambda builder, call: builder.call_te(kernel, call.args[0]),
    )
    x = relax.Var("x", relax.TensorType((3,), "float32"))
    builder = relax.BlockBuilder()
    with builder.function("main", [x]):
        with builder.dataflow():
            out = builder.emit_output(builder.emit(scaled(x)))
        builder.emit_func_output(out)
    module, target = builder.get(), resolve_target("llvm")
    before = program_cache.digest(module, target)
    factor = 5.0
    assert program_cache.digest(module, target) != before


def test_the_files_used_last_are_kept(place, monkeypatch):
    monkeypatch.setattr(library_cache, "MAX_OBJECTS", 2)
    for age in range(4):
        file = place / f"key{age}-0.o"
        file.touch()
        os.utime(file, (1000 - age, 1000 - age))
    (place / "kernel-key-0.so").touch()
    library_cache._prune(place)
    assert {file.name for file in place.iterdir()} == {"key0-0.o", "key1-0.o", "kernel-key-0.so"}


def test_where_there_are_too_many_one_in_ten_makes_room_for_the_next(place, monkeypatch):
    monkeypatch.setattr(library_cache, "MAX_OBJECTS", 20)
    for age in range(21):
        file = place / f"key{age}-0.o"
        file.touch()
        os.utime(file, (1000 - age, 1000 - age))
    library_cache._prune(place)
    assert {file.name for file in place.iterdir()} == {f"key{age}-0.o" for age in range(18)}


def test_a_file_is_found_by_its_whole_key_and_kind(place):
    for name in ("ab-0.o", "ab-1.o", "ab-0.so", "abc-0.o", "kernel-ab-0.o"):
        (place / name).touch()
    found = library_cache.list_files(place, ".o", ["ab", "none"])
    assert {key: sorted(file.name for file in files) for key, files in found.items()} == {
        "ab": ["ab-0.o", "ab-1.o"],
        "none": [],
    }
