# SPDX-License-Identifier: Apache-2.0
"""Kernels for a device are compiled once a machine, not once a process.

An emulated kernel cannot be written to a file, so memory stands for the folder here.
"""

import numpy as np
import pytest

from sparsetrain import runtime
from sparsetrain.backends.cuda import Cuda
from sparsetrain.backends.cuda import device as gpu
from sparsetrain.backends.cuda.kernel_table import lookup_kernel
from sparsetrain.runtime import compiling, library_cache
from tests.cuda.test_kernels import there


@pytest.fixture
def compiled(cuda, monkeypatch, tmp_path):
    """How often a kernel was really compiled."""
    calls, compile_kernels = [], gpu.compile_kernels
    monkeypatch.setenv("SPARSETRAIN_CACHE", str(tmp_path / "kernels"))
    monkeypatch.setattr(Cuda, "caches", True)
    kept: dict[str, object] = {}
    monkeypatch.setattr(library_cache, "load", lambda _place, key: kept.get(key))
    monkeypatch.setattr(
        library_cache, "store", lambda _place, key, made: kept.setdefault(key, made)
    )
    monkeypatch.setattr(gpu, "compile_kernels", lambda *a: calls.append(1) or compile_kernels(*a))
    return calls


def look_up(width: int) -> np.ndarray:
    kernel = compiling.compile_kernel(lookup_kernel(width, "float32", "int32"), gpu.target())
    out = there(np.zeros((2, width), "f4"), "cuda")
    kernel(there(np.arange(5 * width, dtype="f4").reshape(5, width), "cuda"), ids(), out)
    return runtime.as_numpy(out)[:, 0] / width


def ids():
    return there(np.array([3, 1], "i4"), "cuda")


def test_a_kernel_comes_back_and_another_is_compiled(compiled):
    assert look_up(4).tolist() == look_up(4).tolist() == [3, 1]
    assert len(compiled) == 1
    assert look_up(2).tolist() == [3, 1]
    assert len(compiled) == 2


def test_other_settings_of_the_compiler_make_another_kernel(compiled, monkeypatch):
    look_up(4)
    monkeypatch.setenv("TVM_CUDA_NVCC_NO_FAST_MATH", "0")
    look_up(4)
    assert len(compiled) == 2


def test_without_a_folder_nothing_is_kept(compiled, monkeypatch):
    monkeypatch.setenv("SPARSETRAIN_CACHE", "")
    assert library_cache.cache_folder() is None
    assert look_up(4).tolist() == look_up(4).tolist() == [3, 1]
    assert len(compiled) == 2
