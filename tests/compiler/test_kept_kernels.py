# SPDX-License-Identifier: Apache-2.0
"""Kernels that are called by themselves come back from disk, as programs do."""

import os

import numpy as np
import pytest
import tvm
from tvm.script.ir_builder import tirx as T

from sparsetrain import runtime
from sparsetrain.kernels.builder import buffer, extents, kernel
from sparsetrain.runtime import library_cache
from sparsetrain.runtime.compiling import compile_kernel
from sparsetrain.runtime.host import host_target

pytestmark = pytest.mark.skipif(os.name != "posix", reason="file modes are POSIX")


@pytest.fixture
def compiled(place, monkeypatch):
    """How often TVM was asked to compile."""
    calls, compile_ = [], tvm.compile
    monkeypatch.setattr(tvm, "compile", lambda *a, **k: calls.append(1) or compile_(*a, **k))
    return calls


def times(factor: float):
    with kernel() as built:
        (length,) = extents(1)
        array = buffer("array", (length,), "float32")
        with T.serial(length) as i:
            T.buffer_store(array, array[i] * T.float32(factor), [i])
    return built.get()


def run(factor: float = 2.0, name: str = "times") -> list[float]:
    array = runtime.as_tensor(np.arange(3, dtype="f4"))
    compile_kernel(times(factor), host_target(), name)(array)
    return array.numpy().tolist()


def test_a_kernel_comes_back_and_another_is_compiled(compiled, place):
    assert run() == run() == [0, 2, 4]
    assert len(compiled) == 1
    assert run(3.0) == [0, 3, 6]
    assert run(3.0, "other name") == [0, 3, 6]
    assert len(compiled) == len(list(place.glob(f"{library_cache.KERNEL_PREFIX}*.so"))) == 3


def test_a_damaged_one_is_compiled_again(compiled, place):
    run()
    file = next(place.glob("*.so"))
    content = file.read_bytes()
    file.unlink()  # a new file: the old one is mapped by this process
    file.write_bytes(content[:-1])
    file.chmod(0o600)
    assert run() == [0, 2, 4]
    assert len(compiled) == 2


def test_without_a_folder_or_a_linker_it_is_compiled_each_time(compiled, place, monkeypatch):
    monkeypatch.setattr(library_cache, "can_link", lambda: False)
    assert run() == run() == [0, 2, 4]
    assert not list(place.iterdir())
    monkeypatch.setenv("SPARSETRAIN_CACHE", "")
    assert run() == [0, 2, 4]
    assert len(compiled) == 3


def test_one_that_is_kept_needs_no_linker(compiled, monkeypatch):
    run()
    monkeypatch.setattr(library_cache, "can_link", lambda: False)
    assert run() == [0, 2, 4]
    assert len(compiled) == 1


def test_the_least_recently_used_go_first_and_no_program_goes_for_a_kernel(place, monkeypatch):
    monkeypatch.setattr(library_cache, "MAX_KERNELS", 2)
    for key in (library_cache.KERNEL_PREFIX, ""):
        for age in range(4):
            file = place / f"{key}{age:032d}-{'0' * 16}.so"
            file.write_bytes(b"")
            os.utime(file, (1000 - age, 1000 - age))
    run()
    assert len(list(place.glob(f"{library_cache.KERNEL_PREFIX}*.so"))) == 2
    assert (place / f"{library_cache.KERNEL_PREFIX}{0:032d}-{'0' * 16}.so").exists()
    assert len(list(place.glob("[0-9a-f]*.so"))) == 4
