# SPDX-License-Identifier: Apache-2.0
"""Meaning of ``"auto"`` in tests: the CPU, here and in the processes that a test starts.

So a test says the same with and without a GPU, and many workers do not crowd one device. Those that
are about devices show them for as long as they run (`tests.cuda.device`).

CUDA reads the variable once, when it starts. So it starts here, before anything is hidden: whatever
asked it first while devices are hidden would leave the process without any.
"""

import ctypes
import os
from contextlib import suppress

import pytest

_VISIBLE = "CUDA_VISIBLE_DEVICES"
_GIVEN = "SPARSETRAIN_TEST_GIVEN_DEVICES"  # what the user had set, for workers too
_NOT_SET = "not set"


def hide() -> None:
    """Hide all GPUs from this process and those it starts."""
    os.environ.setdefault(_GIVEN, os.environ.get(_VISIBLE, _NOT_SET))
    with suppress(OSError):  # no driver
        ctypes.CDLL("libcuda.so.1").cuInit(0)
    os.environ[_VISIBLE] = ""


def show(patch: pytest.MonkeyPatch) -> None:
    """Let GPUs be seen as the user wants it, until `patch` is undone."""
    given = os.environ.get(_GIVEN)
    if given == _NOT_SET:
        patch.delenv(_VISIBLE, raising=False)
    elif given is not None:
        patch.setenv(_VISIBLE, given)
