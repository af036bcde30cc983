# SPDX-License-Identifier: Apache-2.0
"""One body, two targets: ``llvm`` always, ``cuda`` on a GPU or, without one, in the emulator."""

import pytest

from tests.cuda.device import as_gpu


@pytest.fixture(params=["llvm", "cuda"])
def target(request, monkeypatch):
    """The name of a target; tensors for it are made by `there`."""
    if request.param == "llvm":
        yield "cpu"
        return
    with as_gpu(monkeypatch):
        yield "cuda"


@pytest.fixture
def cuda(monkeypatch):
    """The CUDA target, which is emulated where there is no GPU."""
    with as_gpu(monkeypatch) as found:
        yield found
