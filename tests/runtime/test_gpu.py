# SPDX-License-Identifier: Apache-2.0
"""An unusable GPU is explained in one line, and only ``"auto"`` goes on without it."""

import os
import shutil
import warnings

import pytest
import tvm

import sparsetrain as st
from sparsetrain.backends.cuda import device as gpu
from sparsetrain.cli import main
from sparsetrain.errors import ConfigError
from sparsetrain.runtime import targets
from sparsetrain.runtime.host import host_target
from sparsetrain.runtime.targets import resolve_target
from tests.cuda.device import pretend_nothing


@pytest.fixture
def forgetful(monkeypatch):
    """Ask again what there is, before and after; nothing is hidden, nothing emulated."""
    pretend_nothing(monkeypatch)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    caches = gpu.target, targets._best_target
    for cache in caches:
        cache.cache_clear()
    yield
    for cache in caches:
        cache.cache_clear()


class Device:
    def __init__(self, exist: bool) -> None:
        self.exist = exist


# What is missing -> what is said. Each case lacks one thing and has those before it.
LACKING = {
    "driver": "there is no NVIDIA driver (libcuda.so.1)",
    "runtime": "TVM's CUDA runtime does not load: it needs libcudart.so.13 of CUDA 13: "
    "pip install 'sparsetrain[cuda]'",
    "device": "there is an NVIDIA driver, but TVM sees no device (nvidia-smi tells more)",
    "nvcc": "kernels are compiled by nvcc, which is not on PATH: pip install 'sparsetrain[cuda]'",
}


def lack(what: str, patch: pytest.MonkeyPatch) -> None:
    known = list(LACKING).index(what)
    find, which = tvm.get_global_func, shutil.which
    names = {"device_api.cuda": None if known == 1 else object()}
    patch.setattr(gpu, "has_driver", lambda: known > 0)
    patch.setattr(tvm, "get_global_func", lambda n, *a, **k: names.get(n) or find(n, *a, **k))
    patch.setattr(tvm, "cuda", lambda index=0: Device(known > 2))
    patch.setattr(shutil, "which", lambda name: None if name == "nvcc" else which(name))
    patch.setitem(os.environ, "TVM_CUDA_COMPILE_MODE", "nvcc")
    if known == 1:
        patch.setattr(tvm, "get_global_func", lambda n, *a, **k: None)


@pytest.mark.parametrize("what", LACKING)
def test_what_is_missing_is_named(what, monkeypatch, forgetful):
    lack(what, monkeypatch)
    assert gpu.unavailable_reason() == LACKING[what]
    with pytest.raises(ConfigError) as raised:
        st.Trainer(st.models.DLRM(rows=[3], dim=2), st.optim.sgd(0.1), target="cuda")
    assert str(raised.value) == f"target 'cuda' cannot be used: {LACKING[what]}"


def test_train_asks_for_the_device_before_it_reads_anything(monkeypatch, forgetful, capsys):
    lack("driver", monkeypatch)
    assert main(["train", "no such file", "--target", "cuda"]) == 2
    assert f"target 'cuda' cannot be used: {LACKING['driver']}" in capsys.readouterr().err


def test_auto_goes_to_the_cpu_and_says_so_once_where_there_is_a_driver(monkeypatch, forgetful):
    lack("nvcc", monkeypatch)
    with pytest.warns(RuntimeWarning, match="running on the CPU: kernels are compiled by nvcc"):
        assert resolve_target("auto") is host_target()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert resolve_target() is host_target()


def test_auto_is_silent_where_nobody_expects_a_gpu(monkeypatch, forgetful):
    lack("driver", monkeypatch)
    assert resolve_target("auto") is host_target()


@pytest.mark.parametrize("hidden", ["", "-1"])
def test_who_hides_all_devices_runs_on_the_cpu_without_a_word(hidden, monkeypatch, forgetful):
    lack("nvcc", monkeypatch)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", hidden)
    assert resolve_target("auto") is host_target()
    with pytest.raises(ConfigError, match="CUDA_VISIBLE_DEVICES hides all devices"):
        resolve_target("cuda")


def test_a_cuda_target_of_the_users_gets_this_machine_as_its_host():
    target = tvm.target.Target({"kind": "cuda", "arch": "sm_80"})
    assert str(resolve_target(target).host) == str(host_target())
    assert str(resolve_target(target).attrs["arch"]) == "sm_80"


def test_kernels_are_compiled_without_fast_math():
    assert os.environ["TVM_CUDA_NVCC_NO_FAST_MATH"]
    assert os.environ["TVM_CUDA_COMPILE_MODE"]
