# SPDX-License-Identifier: Apache-2.0
"""Kernels are compiled a few at a time, kept, and linked into every program that has them."""

import os
import platform
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
import tvm
from tvm import relax, tirx
from tvm.script.ir_builder import tirx as T

import sparsetrain as st
from sparsetrain.kernels.builder import buffer, kernel
from sparsetrain.runtime import library_cache, lowering, object_files
from sparsetrain.runtime.host import host_target
from sparsetrain.runtime.kernel_names import plain_name
from tests import small_dlrm
from tests.helpers import assert_same_bits, slow_except

pytestmark = pytest.mark.skipif(os.name != "posix", reason="file modes are POSIX")
X = np.arange(6, dtype="float32").reshape(2, 3)


@pytest.fixture
def compiled(monkeypatch):
    """Names of the kernels that were really compiled by themselves."""
    names, codegen_build = [], object_files.codegen_build

    def noting(module, target):
        names.extend(plain_name(var.name_hint) for var in module.functions)
        return codegen_build(module, target)

    monkeypatch.setattr(object_files, "codegen_build", noting)
    return names


def run(*names, target="llvm"):
    """Apply each of these operators to X, by a program with a kernel for each."""
    x = relax.Var("x", relax.TensorType(X.shape, "float32"))
    builder = relax.BlockBuilder()
    with builder.function("main", [x]):
        with builder.dataflow():
            results = [builder.emit(getattr(relax.op, name)(x)) for name in names]
            out = builder.emit_output(relax.Tuple(results))
        builder.emit_func_output(out)
    program = st.Program(builder.get(), "main", target)
    for name, found in zip(names, program({}, {"x": X}), strict=True):
        expected = getattr(np, name)(X)
        np.testing.assert_allclose(found.numpy(), expected, rtol=1e-6)


def test_a_kernel_of_two_programs_is_compiled_once(place, compiled):
    run("negative", "sqrt")
    run("negative", "floor")
    # The first two by two threads, in any order.
    assert sorted(compiled[:2]) == ["tir_negative", "tir_sqrt"] and compiled[2:] == ["tir_floor"]


def test_a_kernel_in_two_files_is_linked_once(tmp_path, compiled, monkeypatch):
    for place, name in (("one", "sqrt"), ("two", "floor")):
        monkeypatch.setenv("SPARSETRAIN_CACHE", str(tmp_path / place))
        run("negative", name)
    for file in (tmp_path / "one").glob("*.o"):  # as if another process had been as fast
        file.rename(tmp_path / "two" / file.name)
    compiled.clear()
    run("sqrt", "floor")
    assert compiled == []


def test_the_file_of_one_kernel_does_not_depend_on_others(tmp_path):
    def files(kernels, folder: str) -> dict[str, str]:
        (tmp_path / folder).mkdir()
        object_files.compile_objects(tvm.IRModule(kernels), host_target(), tmp_path / folder, 1)
        return dict(sorted(file.stem.split("-")) for file in (tmp_path / folder).glob("*.o"))

    def doubling(name: str):
        with kernel() as built:
            x = buffer("x", X.shape, "float32")
            with T.grid(*X.shape) as (i, j):
                T.buffer_store(x, x[i, j] * T.float32(2), [i, j])
        return built.get().with_attr("global_symbol", name)

    both = files({name: doubling(name) for name in ("one", "two")}, "both")
    one = files({"one": doubling("one")}, "alone")
    assert len(both) == 2 and one.items() <= both.items()


def test_a_target_may_name_the_level_of_llvm():
    named = lowering.for_llvm(tvm.target.Target({"kind": "llvm", "opt-level": 3}))
    assert named.attrs["opt-level"] == 3
    assert lowering.for_llvm(host_target()).attrs["opt-level"] == lowering.LEVEL


def test_another_optimizer_compiles_its_updates_alone(place, compiled):
    for make in (st.optim.adagrad, st.optim.adam):
        compiled.clear()
        model = st.models.DLRM(rows=[5, 3], dim=4, bottom=(), top=(8,), num_dense=13)
        st.Trainer(model, make(0.1, update="sparse"), target="cpu").compile()
    updates = {"dense_updates", "update_of_touched_rows", "check_for_NaN_and_infinity"}
    # TVM keeps extents in the order of addresses: its functions of shapes may differ in that.
    assert compiled and {name for name in compiled if not name.startswith("shape_func")} <= updates


def test_predictions_share_the_layers_of_the_step(place, compiled):
    model = st.models.DLRM(rows=[5, 3], dim=4, bottom=(8,), top=(8, 8), num_dense=13)
    trainer = st.Trainer(model, st.optim.adagrad(0.1), target="cpu")
    trainer.compile()
    assert "fused_matmul_nt_add_relu" in compiled
    compiled.clear()
    trainer.compile(scores=True)
    # Layers of numbers alone are computed once for equal rows, which `take` then repeats.
    found = sorted(name for name in compiled if name != "shape_func")
    assert found == ["fused_matmul_nt_add_relu"] * 2 + ["take"]


@pytest.mark.parametrize("kind", slow_except(["weighted"], ["single", "weighted"]))
def test_a_step_has_the_bits_of_a_program_that_is_compiled_as_a_whole(kind, monkeypatch):
    def trained() -> dict[str, np.ndarray]:
        trainer = st.Trainer(small_dlrm.model(kind), st.optim.adagrad(0.1), target="cpu")
        for size in (16, 5):
            trainer.step(small_dlrm.batch(size, kind=kind))
        return trainer.state_dict()

    linked = trained()
    assert list(library_cache.cache_folder().glob("*.o"))
    monkeypatch.setenv("SPARSETRAIN_CACHE", "")
    whole = trained()
    assert linked.keys() == whole.keys()
    for name, array in whole.items():
        assert_same_bits(linked[name], array)


@pytest.mark.parametrize("threads", slow_except([8], [2, 8]))
def test_kernels_have_the_same_code_on_any_number_of_threads(threads, tmp_path, monkeypatch):
    def kept(name: str) -> list[str]:
        monkeypatch.setenv("SPARSETRAIN_CACHE", str(tmp_path / name))
        run("negative", "sqrt", "floor", "exp", "tanh", "abs", "ceil", "sin", "cos", "square")
        return sorted(file.name for file in (tmp_path / name).glob("*.o"))

    used = []

    def noting(file, *names):
        used.append(threading.get_ident())
        return load(file, *names)

    load = object_files._load_static
    monkeypatch.setattr(object_files, "_load_static", noting)
    monkeypatch.setattr(object_files.threads, "max_worker_threads", lambda: threads)
    found = kept("found")  # a file is named by its content, too
    assert len(found) == 10 and len(set(used)) > 2
    monkeypatch.setattr(object_files.threads, "max_worker_threads", lambda: 1)
    assert found == kept("one by one")


def test_one_failure_ends_the_compile_and_is_told(place, monkeypatch):
    def failing(module, target):
        if "tir_floor" in [plain_name(var.name_hint) for var in module.functions]:
            raise RuntimeError("LLVM failed")
        return codegen_build(module, target)

    codegen_build = object_files.codegen_build
    monkeypatch.setattr(object_files, "codegen_build", failing)
    with pytest.raises(RuntimeError, match="LLVM failed"):
        run("negative", "floor", "sqrt")


def test_objects_belong_to_the_user_alone(place):
    run("negative")
    assert [file.stat().st_mode & 0o777 for file in place.glob("*.o")] == [0o600]


@pytest.mark.parametrize("fault", ["cut", "flipped", "writable"])
def test_a_damaged_object_or_one_that_others_may_write_is_not_linked(place, compiled, fault):
    run("negative")
    file = next(place.glob("*.o"))
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= fault == "flipped"
    file.write_bytes(content[:100] if fault == "cut" else content)
    file.chmod(0o666 if fault == "writable" else 0o600)
    run("negative", "sqrt")
    assert sorted(compiled) == ["tir_negative", "tir_negative", "tir_sqrt"]


def test_on_a_full_disk_a_program_is_compiled_as_a_whole(place, monkeypatch):
    def full(_source, target):
        assert target.parents[1].samefile(place)
        raise OSError("no space left on device")

    monkeypatch.setattr(library_cache.shutil, "copyfile", full)
    run("negative")
    assert not list(place.iterdir())


def test_llvm_does_not_write_where_things_are_kept(place):
    places = []

    def write(file):
        places.append(Path(file))
        Path(file).write_bytes(b"x")

    kept = library_cache.write_file(place, "key", ".o", write)
    assert kept.read_bytes() == b"x"
    assert place not in places[0].parents


def test_objects_are_dropped_where_nothing_can_be_linked(place, monkeypatch):
    def fail(*_arguments, **_options):
        raise RuntimeError("the linker failed")

    monkeypatch.setattr(library_cache, "MAX_OBJECTS", 2)
    monkeypatch.setattr(relax.VMExecutable, "export_library", fail)
    run("negative", "sqrt", "floor")
    assert len(list(place.glob("*.o"))) == 2


def test_without_a_compiler_a_program_runs_and_is_not_kept(place, compiled, monkeypatch):
    monkeypatch.setattr(library_cache, "can_link", lambda: False)
    run("negative")
    assert not compiled and not list(place.iterdir())


def scaling(factor: str) -> tvm.IRModule:
    """A program whose kernel calls a function that it brings along as text of LLVM."""
    text = f"""define linkonce_odr float @times(float %x) alwaysinline nounwind {{
      %y = fmul float %x, {factor}
      ret float %y
    }}"""
    with kernel("scaling") as built:
        source, target = (buffer(name, X.shape, "float32") for name in ("source", "target"))
        with T.attr(0, "pragma_import_llvm", text), T.grid(*X.shape) as (i, j):
            value = tirx.call_extern("float32", "times", source[i, j])
            T.buffer_store(target, value, [i, j])
    return calling(built.get())


def calling(function: tirx.PrimFunc) -> tvm.IRModule:
    """A Relax function that calls a kernel which is scheduled already."""
    x = relax.Var("x", relax.TensorType(X.shape, "float32"))
    builder = relax.BlockBuilder()
    with builder.function("main", [x]):
        var = builder.add_func(function.with_attr("tirx.is_scheduled", True), "scaling")
        with builder.dataflow():
            out = builder.emit_output(relax.call_tir(var, (x,), x.ty))
        builder.emit_func_output(out)
    return builder.get()


def test_kernels_that_differ_in_what_llvm_they_bring_along_are_two(place):
    for factor in ("2.0", "3.0"):
        found = st.Program(scaling(factor), "main", "llvm")({}, {"x": X})
        assert_same_bits(found, X * np.float32(factor))


def test_kernels_of_a_program_may_bring_along_different_functions_of_one_name(tmp_path):
    kernels = {
        name: next(f for f in scaling(factor).functions.values() if isinstance(f, tirx.PrimFunc))
        for name, factor in (("twice", "2.0"), ("thrice", "3.0"))
    }
    named = {name: each.with_attr("global_symbol", name) for name, each in kernels.items()}
    made = object_files.compile_objects(tvm.IRModule(named), host_target(), tmp_path)
    assert len(made) == 2


@pytest.mark.skipif(platform.machine() not in ("x86_64", "AMD64"), reason="names an x86-64")
def test_an_object_is_made_for_the_host_of_a_target(place, monkeypatch):
    asked, codegen_build = [], object_files.codegen_build

    def noting(module, target):
        asked.append(str(target.attrs["mcpu"]))
        return codegen_build(module, target)

    monkeypatch.setattr(object_files, "codegen_build", noting)
    host = tvm.target.Target({"kind": "llvm", "mcpu": "x86-64"})
    run("negative", target=tvm.target.Target({"kind": "llvm", "mcpu": "x86-64-v3"}, host=host))
    assert asked == ["x86-64"]


def test_a_kernel_that_calls_another_is_not_compiled_by_itself(place):
    with kernel("caller") as built:
        target = buffer("target", X.shape, "float32")
        other = tvm.ir.GlobalVar("other")
        with T.grid(*X.shape) as (i, j):
            T.buffer_store(target, tvm.ir.Call(other, [target[i, j]], ret_ty="float32"), [i, j])
    with pytest.raises(object_files.CrossKernelCallError, match="other"):
        object_files.compile_objects(tvm.IRModule({"caller": built.get()}), host_target(), place)


def test_what_cannot_be_linked_is_compiled_as_a_whole(place, monkeypatch):
    monkeypatch.setenv("CXX", "/bin/false")
    run("negative")
    assert list(place.glob("*.o")) and not list(place.glob("*.so"))


def test_the_least_recently_used_objects_go_first(place, monkeypatch):
    monkeypatch.setattr(library_cache, "MAX_OBJECTS", 2)
    for age in range(3):
        file = place / f"{age:032d}-{'0' * 16}.o"
        file.write_bytes(b"")
        os.utime(file, (1000 - age, 1000 - age))
    run("negative")
    assert [file.name[:32] for file in place.glob("0000*.o")] == [f"{0:032d}"]


FULL_DISK = """
import resource
from tests.runtime.test_object_files import run

resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))  # as on a full disk, for this process
run("negative", "sqrt")  # whose results it checks
print("done")
"""


def test_a_full_temporary_folder_does_not_end_the_process(tmp_path):
    # Python would cut its own files of bytecode too.
    own = {"SPARSETRAIN_CACHE": str(tmp_path / "programs"), "PYTHONDONTWRITEBYTECODE": "1"}
    command = [sys.executable, "-c", FULL_DISK]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, **own})
    assert (done.returncode, done.stdout) == (0, "done\n"), done.stderr
