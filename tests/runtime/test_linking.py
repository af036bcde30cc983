# SPDX-License-Identifier: Apache-2.0
"""Kernels are linked with what C may call, and with no more where the compiler can leave it out."""

import shutil
import sys

import numpy as np
import pytest
import tvm
from tvm import te, tirx
from tvm.script.ir_builder import tirx as T
from tvm.support import cc

from sparsetrain import runtime
from sparsetrain.kernels.builder import buffer, kernel
from sparsetrain.runtime.compiling import compile_kernel

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="how Linux links")
TARGET = tvm.target.Target("llvm")  # a CPU from before halves: libgcc turns them into floats


def roots_of_halves():
    """``y = x ** 0.2``, by C's mathematics."""
    x = te.placeholder((4,), "float16", "x")
    fifth = tirx.const(0.2, "float64")
    y = te.compute((4,), lambda i: tirx.pow(x[i].astype("float64"), fifth).astype("float16"))
    return te.create_prim_func([x, y])


def run_roots():
    x, y = (runtime.as_tensor(np.full(4, n, "float16")) for n in (32, 0))
    compile_kernel(roots_of_halves(), TARGET)(x, y)
    assert y.numpy().tolist() == [2, 2, 2, 2]


def calling(name: str):
    """A kernel whose own text of LLVM asks C++ for memory and gives it back."""
    text = f"""
    declare ptr @_Znwm(i64)
    declare void @_ZdlPv(ptr)
    define linkonce_odr i32 @{name}(i32 %x) alwaysinline {{
      %place = call ptr @_Znwm(i64 4)
      store volatile i32 %x, ptr %place
      %y = load volatile i32, ptr %place
      call void @_ZdlPv(ptr %place)
      ret i32 %y
    }}"""
    with kernel() as built:
        target = buffer("target", (3,), "int32")
        with T.attr(0, "pragma_import_llvm", text), T.serial(3) as i:
            T.buffer_store(target, tirx.call_extern("int32", name, i.astype("int32")), [i])
    return built.get()


@pytest.fixture
def asked(tmp_path, monkeypatch):
    """What a compiler is asked for; it may be made to refuse an option."""
    log, compiler = tmp_path / "asked", tmp_path / "compiler"
    refused = 'case "$*" in *"$REFUSED"*) echo "unknown option"; exit 1;; esac'
    compiler.write_text(f'#!/bin/sh\necho "$@" >> {log}\n{refused}\nexec {cc.get_cc()} "$@"\n')
    compiler.chmod(0o700)
    monkeypatch.setenv("CXX", str(compiler))
    monkeypatch.setenv("REFUSED", "--none")
    return lambda: log.read_text().splitlines()


def test_a_library_names_those_of_c_whose_functions_it_calls_and_none_of_cpp(place, asked):
    run_roots()
    (file,) = place.glob("*.so")
    assert b"libm.so" in file.read_bytes()
    assert b"libstdc++" not in file.read_bytes()
    (line,) = asked()
    assert "-nodefaultlibs" in line


def test_what_a_users_kernel_calls_of_cpp_is_found_where_tvm_has_it(place):
    found = runtime.as_tensor(np.zeros(3, "int32"))
    compile_kernel(calling("through_memory"), TARGET)(found)
    assert found.numpy().tolist() == [0, 1, 2]
    assert len(list(place.glob("*.so"))) == 1


def test_a_compiler_that_refuses_the_options_links_as_it_would(place, asked, monkeypatch):
    monkeypatch.setenv("REFUSED", "-nodefaultlibs")
    run_roots()
    assert ["-nodefaultlibs" in line for line in asked()] == [True, False]
    assert len(list(place.glob("*.so"))) == 1


@pytest.mark.parametrize("compiler", ["gcc", "clang"])
def test_compilers_of_c_link_too(place, monkeypatch, compiler):
    if shutil.which(compiler) is None:
        pytest.skip(f"needs {compiler}")
    monkeypatch.setenv("CXX", compiler)
    run_roots()
    assert len(list(place.glob("*.so"))) == 1


def test_where_nothing_links_a_kernel_runs_and_is_not_kept(place, monkeypatch):
    monkeypatch.setenv("CXX", "/bin/false")
    run_roots()
    assert not list(place.glob("*.so"))
