# SPDX-License-Identifier: Apache-2.0
"""One private cache of compiled programs for a test session and the processes that it starts.

`make test` lets several workers share the files of tests. What one has compiled the others load.
"""

import os
import tempfile

import pytest

from tests.devices import hide

IS_WORKER = "PYTEST_XDIST_WORKER" in os.environ
if IS_WORKER:
    # There are as many workers as cores: a thread that spins would take another worker's.
    os.environ.setdefault("TVM_THREAD_POOL_SPIN_COUNT", "0")
_before = os.environ.get("SPARSETRAIN_CACHE")
_folder = None if IS_WORKER else tempfile.TemporaryDirectory(prefix="sparsetrain-tests-")


def pytest_configure(config):
    """Neither read nor fill the cache of whoever runs the tests.

    "auto" is the CPU in all tests but those on CUDA, whether there is a GPU or not. With
    SPARSETRAIN_TEST_CUDA=device it is the GPU, with SPARSETRAIN_TEST_CUDA=emulated an emulated one.
    """
    if _folder is not None:
        os.environ["SPARSETRAIN_CACHE"] = _folder.name
    wanted = os.environ.get("SPARSETRAIN_TEST_CUDA")
    if wanted is None and config.getoption("dist", "no") == "no":
        hide()  # who only hands out tests would hide devices from workers before they start CUDA
    elif wanted == "emulated":
        from tests.cuda.device import pretend_there_is_one

        pretend_there_is_one()


def pytest_unconfigure():
    """Remove the cache; the workers have ended."""
    if _folder is None:
        return
    _folder.cleanup()
    if _before is None:
        os.environ.pop("SPARSETRAIN_CACHE", None)
    else:
        os.environ["SPARSETRAIN_CACHE"] = _before


@pytest.fixture(autouse=True, scope="session")
def _no_wait_for_the_disk():
    """Let `os.fsync` return at once: no test cuts the power. Commands run as processes do wait."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda _descriptor: None)
        yield
