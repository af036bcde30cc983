# SPDX-License-Identifier: Apache-2.0
"""The host's target has the instructions that Linux lists, whatever the CPU is called."""

import numpy as np
import pytest
from tvm.script import tirx as T
from tvm.target import Target
from tvm.target.codegen import llvm_get_cpu_features, target_has_features

from sparsetrain import runtime
from sparsetrain.runtime import host

OLD = {"avx", "f16c", "fma", "avx2"}
WIDE = OLD | {"avx512f", "avx512cd", "avx512bw", "avx512dq", "avx512vl"}


def changes(promised, flags, tiles_allowed=True):
    return host.corrections(promised, flags, tiles_allowed=tiles_allowed)


def test_nothing_changes_where_the_name_is_right():
    assert changes(WIDE, WIDE | {"sse2", "lm"}) == []


def test_what_an_older_name_hides_is_added():
    flags = WIDE | {"avx512_bf16", "amx_tile", "amx_bf16"}
    assert changes(WIDE, flags) == ["+avx512bf16", "+amx-tile", "+amx-bf16"]


def test_what_a_hypervisor_hides_is_taken_away():
    taken = {"-avx512f", "-avx512cd", "-avx512bw", "-avx512dq", "-avx512vl"}
    assert set(changes(WIDE, OLD)) == taken


def test_tiles_without_permission_are_none():
    flags = WIDE | {"amx_tile", "amx_bf16"}
    assert changes(WIDE, flags, tiles_allowed=False) == []
    assert changes(WIDE | {"amx-tile", "amx-bf16"}, flags, tiles_allowed=False) == [
        "-amx-tile",
        "-amx-bf16",
    ]


@pytest.mark.parametrize("change", ["+avx512bf16", "-avx512f"])
def test_a_target_with_changes_is_believed(change):
    target = Target({"kind": "llvm", "mcpu": "skylake-avx512", "mattr": [change]})
    assert target_has_features(change[1:], target) == (change[0] == "+")


def test_the_host_has_what_linux_lists():
    flags = host._flags()
    if flags is None:
        pytest.skip("no list of this machine's flags")
    features = set(map(str, llvm_get_cpu_features(runtime.host_target())))
    assert {f for f in host._VECTORS.values() if f in features} == {
        feature for flag, feature in host._VECTORS.items() if flag in flags
    }


@pytest.mark.parametrize("text", ["", "processor : 0\nFeatures : fp asimd\n"])
def test_without_flags_the_name_is_all_there_is(text, monkeypatch, tmp_path):
    listed = tmp_path / "cpuinfo"
    listed.write_text(text)
    monkeypatch.setattr(host, "_CPUINFO", listed)
    assert host._flags() is None
    monkeypatch.setattr(host, "_CPUINFO", tmp_path / "none")
    assert host._flags() is None


def test_a_kernel_for_the_host_runs():
    @T.prim_func(private=True)
    def double(x: T.Buffer((64,), "float32"), y: T.Buffer((64,), "float32")):
        for i in T.vectorized(64):
            y[i] = x[i] * T.float32(2)

    kernel = runtime.compile_kernel(double, runtime.host_target())
    x, y = runtime.as_tensor(np.arange(64, dtype="float32")), runtime.empty((64,), "float32")
    kernel(x, y)
    np.testing.assert_array_equal(runtime.as_numpy(y), 2 * np.arange(64))
