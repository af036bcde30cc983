# SPDX-License-Identifier: Apache-2.0
"""TVM is imported without PyTorch and devices, which can be imported later."""

import os
import subprocess
import sys

import pytest

import sparsetrain as st
from tests.helpers import slow_except

USE = """
import sys
import sparsetrain as st
for name in {names}:
    getattr(st, name)
assert "tvm" in sys.modules
print("torch" in sys.modules)
import torch
print(torch.IS_HERE)
"""


@pytest.mark.parametrize("names", slow_except([st.__all__], [["load"], st.__all__]))
def test_pytorch_is_imported_by_who_asks_for_it(tmp_path, names):
    (tmp_path / "torch.py").write_text("IS_HERE = True")
    path = os.pathsep.join([str(tmp_path), *sys.path])
    done = subprocess.run(
        [sys.executable, "-c", USE.format(names=names)],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": path},
    )
    assert done.stdout.split() == ["False", "True"], done.stderr


DEVICES = """
import os, sys
import sparsetrain.runtime
import tvm
from sparsetrain.backends.cuda import device
print(tvm.backend.is_loaded("cuda"), "tvm.runtime.disco.session" in sys.modules)
target = device.with_host(tvm.target.Target({"kind": "cuda", "arch": "sm_90"}))
print(tvm.backend.is_loaded("cuda"), os.environ.get("TVM_DEVICE_BACKEND_AUTOLOAD"))
print(tvm.get_global_func("tvm.contrib.sort.argsort", allow_missing=True) is None)
"""


@pytest.mark.parametrize(
    ("wish", "loaded"), [(None, "False False True None False"), ("1", "True False True 1 False")]
)
def test_devices_are_loaded_by_who_uses_them(monkeypatch, wish, loaded):
    monkeypatch.delenv("TVM_DEVICE_BACKEND_AUTOLOAD", raising=False)
    if wish:
        monkeypatch.setenv("TVM_DEVICE_BACKEND_AUTOLOAD", wish)
    done = subprocess.run([sys.executable, "-c", DEVICES], capture_output=True, text=True)
    assert done.stdout.split() == loaded.split(), done.stderr


ERROR = """
import sparsetrain.runtime
import tvm_ffi.core as core
memory = lambda: int(open("/proc/self/statm").read().split()[1]) * 4  # KB
before = memory()
core._object_type_key_to_index("no.such.type")
print(memory() - before)
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
def test_the_import_of_tvm_meets_no_error_in_c():
    done = subprocess.run([sys.executable, "-c", ERROR], capture_output=True, text=True)
    # The first error reads debug information: so it came after the import.
    assert int(done.stdout) > 10_000, done.stderr
