# SPDX-License-Identifier: Apache-2.0
"""The host's target has the instructions that Linux lists, whatever the CPU is called."""

import subprocess
import sys

import numpy as np
import pytest
from tvm.script import tirx as T
from tvm.target import Target
from tvm.target.codegen import llvm_get_cpu_features, target_has_features

from sparsetrain import runtime
from sparsetrain.runtime import host
from sparsetrain.runtime.compiling import compile_kernel
from sparsetrain.runtime.host import host_target
from sparsetrain.runtime.targets import resolve_target

OLD = {"avx", "f16c", "fma", "avx2"}
WIDE = OLD | {"avx512f", "avx512cd", "avx512bw", "avx512dq", "avx512vl"}


TILES = {"amx_tile", "amx_bf16"}
# Case -> what the CPU's name implies, Linux's flags, whether tiles are allowed, the changes.
CHANGES = {
    "the name is right": (WIDE, WIDE | {"sse2", "lm"}, True, []),
    "an older name": (
        *(WIDE, WIDE | TILES | {"avx512_bf16"}, True),
        ["+avx512bf16", "+amx-tile", "+amx-bf16"],
    ),
    "a hypervisor hides some": (WIDE, OLD, True, [f"-{feature}" for feature in sorted(WIDE - OLD)]),
    "tiles without permission": (WIDE, WIDE | TILES, False, []),
    "a name with tiles, without permission": (
        *(WIDE | {"amx-tile", "amx-bf16"}, WIDE | TILES, False),
        ["-amx-tile", "-amx-bf16"],
    ),
    "LLVM alone would use it, and it is hidden": (
        *(WIDE | {"avx512fp16"}, WIDE, True),
        ["-avx512fp16"],
    ),
    "LLVM alone would use it, and it is there": (WIDE, WIDE | {"avx512_fp16"}, True, []),
}


@pytest.mark.parametrize("case", CHANGES)
def test_a_target_gets_what_the_name_of_its_cpu_lacks_and_loses_what_it_has_not(case):
    implied, flags, allowed, expected = CHANGES[case]
    changes = host.feature_corrections(implied, flags, tiles_allowed=allowed)
    assert sorted(changes) == sorted(expected)


@pytest.mark.parametrize("change", ["+avx512bf16", "-avx512f"])
def test_a_target_with_changes_is_believed(change):
    target = Target({"kind": "llvm", "mcpu": "skylake-avx512", "mattr": [change]})
    assert target_has_features(change[1:], target) == (change[0] == "+")


def test_the_host_has_what_linux_lists():
    flags = host._flags()
    if flags is None:
        pytest.skip("no list of this machine's flags")
    features = set(map(str, llvm_get_cpu_features(host_target())))
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

    kernel = compile_kernel(double, host_target())
    x, y = runtime.as_tensor(np.arange(64, dtype="float32")), runtime.empty((64,), "float32")
    kernel(x, y)
    np.testing.assert_array_equal(runtime.as_numpy(y), 2 * np.arange(64))


TILED = Target({"kind": "llvm", "mcpu": "sapphirerapids"})


def test_a_users_target_loses_its_tiles_where_they_are_refused(monkeypatch):
    monkeypatch.setattr(host, "_may_use_tiles", lambda: False)
    target = resolve_target(TILED)
    assert target_has_features("amx-bf16", TILED)
    assert not target_has_features("amx-tile", target)
    assert not target_has_features("amx-bf16", target)
    assert target_has_features("avx512bf16", target)
    assert str(target.attrs["mcpu"]) == "sapphirerapids"


def test_a_users_target_stays_where_tiles_are_allowed(monkeypatch):
    monkeypatch.setattr(host, "_may_use_tiles", lambda: True)
    assert resolve_target(TILED) is TILED


ASK = """
import ctypes
from tvm.target import Target
from sparsetrain.runtime import targets
targets.resolve_target(Target({"kind": "llvm", "mcpu": "sapphirerapids"}))
allowed = ctypes.c_uint64()
ctypes.CDLL(None).syscall(158, 0x1022, ctypes.byref(allowed))
print(allowed.value >> 18 & 1)
"""


def test_a_users_target_with_tiles_asks_for_them():
    if not {"amx_tile", "amx_bf16"} <= (host._flags() or set()) or not host._may_use_tiles():
        pytest.skip("no tiles that this process may use")
    done = subprocess.run([sys.executable, "-c", ASK], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "1"
