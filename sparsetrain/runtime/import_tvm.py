# SPDX-License-Identifier: Apache-2.0
"""Import of TVM without its slow searches for missing parts, and with interrupts that pass through.

TVM imports PyTorch if it is installed, although it is optional: most of the import time, and 200
MB. Its wheels lack disco, and its device backends probe for operators. TVM ignores these errors,
but at the first one C++ reads all debug information to name the callers: 0.2 s and 30 MB. So disco
is hidden, and backends are loaded by their users (`tvm.backend.load`), unless the environment has
TVM_DEVICE_BACKEND_AUTOLOAD=1. Packages import this module before anything else of TVM. Modules that
were imported before stay, and hidden ones can be imported later.

A signal may come while TVM calls Python, as its passes do. TVM passes on exceptions of types it
knows; any other, even Ctrl-C, came back as ``RuntimeError('')``.
"""

from __future__ import annotations

import ctypes
import os
from contextlib import suppress
from pathlib import Path

from sparsetrain.system.hidden_modules import hidden

_AUTOLOAD = "TVM_DEVICE_BACKEND_AUTOLOAD"
_autoload = os.environ.get(_AUTOLOAD)
os.environ.setdefault(_AUTOLOAD, "0")
try:
    with hidden("torch", "tvm.runtime.disco"):
        import tvm  # noqa: F401
        import tvm_ffi
        from tvm.base import _LOADED_LIBS
finally:
    if _autoload is None:
        del os.environ[_AUTOLOAD]

# Sorts of the CPU, which TVM loads with the backends of devices.
_library = Path(_LOADED_LIBS["tvm_runtime"]._name)
with suppress(OSError):  # not in every build
    ctypes.CDLL(str(_library.with_name(_library.name.replace("runtime", "runtime_extra"))))


def let_pass(kind: type[BaseException]) -> None:
    """Let TVM bring back exceptions of this type, made anew of their text."""
    tvm_ffi.register_error(kind.__name__, kind)


let_pass(KeyboardInterrupt)
