# SPDX-License-Identifier: Apache-2.0
"""One private folder of what is compiled in a test session and the processes that it starts.

`make test` lets several workers share the files of tests. What one has compiled the others load:
programs and their kernels, the emulator's libraries, and Python's own bytecode.
"""

import gc
import os
import tempfile
from pathlib import Path

import pytest

from tests import heap
from tests.devices import hide

IS_WORKER = "PYTEST_XDIST_WORKER" in os.environ
if IS_WORKER:
    # There are as many workers as cores: a thread that spins would take another worker's.
    os.environ.setdefault("TVM_THREAD_POOL_SPIN_COUNT", "0")
_BYTECODE = "PYTHONDONTWRITEBYTECODE", "PYTHONPYCACHEPREFIX"
_CHANGED = "SPARSETRAIN_CACHE", "SPARSETRAIN_TEST_FOLDER", *_BYTECODE, *heap.VARIABLES
_before = {name: os.environ.get(name) for name in _CHANGED}
_folder = None if IS_WORKER else tempfile.TemporaryDirectory(prefix="sparsetrain-tests-")


def pytest_configure(config):
    """Neither read nor fill the cache of whoever runs the tests.

    "auto" is the CPU in all tests but those on CUDA, whether there is a GPU or not. With
    SPARSETRAIN_TEST_CUDA=device it is the GPU, with SPARSETRAIN_TEST_CUDA=emulated an emulated one.
    """
    heap.keep_freed_memory()
    if _folder is not None:
        os.environ["SPARSETRAIN_TEST_FOLDER"] = _folder.name
        os.environ["SPARSETRAIN_CACHE"] = str(Path(_folder.name) / "programs")
        _let_processes_write_bytecode()
    wanted = os.environ.get("SPARSETRAIN_TEST_CUDA")
    if wanted is None and config.getoption("dist", "no") == "no":
        hide()  # who only hands out tests would hide devices from workers before they start CUDA
    elif wanted == "emulated":
        from tests.cuda.device import pretend_there_is_one

        pretend_there_is_one()


def pytest_collectstart():
    """Begin to import what tests need; it stays."""
    gc.disable()


def pytest_collection_finish():
    """Look for garbage in what tests make, no longer in what was imported for all of them."""
    gc.freeze()
    gc.enable()


def pytest_collection_modifyitems(items):
    """Skip what holds on a CPU alone where "auto" is CUDA; the marker says why."""
    if os.environ.get("SPARSETRAIN_TEST_CUDA") is None:
        return
    for item in items:
        for mark in item.iter_markers("cpu"):
            item.add_marker(pytest.mark.skip(reason=f"on a CPU alone: {mark.args[0]}"))


def pytest_unconfigure():
    """Remove the cache; the workers have ended."""
    if _folder is None:
        return
    _folder.cleanup()
    for name, value in _before.items():
        os.environ.pop(name, None)
        if value is not None:
            os.environ[name] = value


def _let_processes_write_bytecode():
    """Where none may be written, each of a hundred processes would compile what it imports."""
    if os.environ.pop("PYTHONDONTWRITEBYTECODE", None):
        os.environ["PYTHONPYCACHEPREFIX"] = str(Path(_folder.name) / "bytecode")


@pytest.fixture
def place(tmp_path, monkeypatch):
    """The folder of compiled programs, empty and of this test alone."""
    monkeypatch.setenv("SPARSETRAIN_CACHE", str(tmp_path / "programs"))
    from sparsetrain.runtime import library_cache

    assert library_cache.cache_folder() is not None  # made
    return tmp_path / "programs"


@pytest.fixture(autouse=True, scope="session")
def _no_wait_for_the_disk():
    """Let `os.fsync` return at once: no test cuts the power. Commands run as processes do wait."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda _descriptor: None)
        yield


@pytest.fixture(autouse=True, scope="session")
def _no_table_is_small():
    """Let exact mode catch up the tables of tests as it does large ones."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sparsetrain.backends.cpu.Cpu.most_weights_dense", 0)
        yield
