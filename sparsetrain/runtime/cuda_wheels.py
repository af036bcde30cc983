# SPDX-License-Identifier: Apache-2.0
"""CUDA's compiler and runtime library from NVIDIA's wheels, which the extra `cuda` installs.

The system's CUDA takes precedence. TVM runs ``nvcc`` from PATH, and finds the runtime library by
name if it is already loaded, so this module must be imported before TVM.
"""

from __future__ import annotations

import ctypes
import os
import shutil
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path

RUNTIME = "libcudart.so.13"
INSTALL = "pip install 'sparsetrain[cuda]'"


def folder() -> Path | None:
    """Return the folder of CUDA 13 in the wheels, or None if they are not installed."""
    nvidia = find_spec("nvidia")
    places = (nvidia and nvidia.submodule_search_locations) or ()
    return next((cuda for place in places if (cuda := Path(place, "cu13")).is_dir()), None)


def use() -> None:
    """Append nvcc to PATH and load the runtime library, each only if the system lacks it."""
    found = folder()
    if found is None:
        return
    if shutil.which("nvcc") is None and (found / "bin" / "nvcc").is_file():
        paths = [os.environ.get("PATH", os.defpath), str(found / "bin")]
        os.environ["PATH"] = os.pathsep.join(paths)
    with suppress(OSError):
        ctypes.CDLL(RUNTIME)
        return
    with suppress(OSError):
        ctypes.CDLL(str(found / "lib" / RUNTIME))


use()
