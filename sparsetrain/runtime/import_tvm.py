# SPDX-License-Identifier: Apache-2.0
"""Import of TVM without slow searches for its optional parts, and with working interrupts.

TVM imports PyTorch if it is installed, although it does not need it; this takes most of the import
time, and 200 MB. TVM's wheels lack disco, and its device backends look for operators that may be
missing. TVM ignores these errors, but at the first one C++ reads all debug information to name the
callers, which takes 0.2 s and 30 MB. So disco is hidden, and backends are loaded by their users
(`tvm.backend.load`), unless the environment has TVM_DEVICE_BACKEND_AUTOLOAD=1.
`sparsetrain.runtime` imports this module before anything else of TVM. Modules that are already
imported stay, and hidden modules can be imported later.

A signal may arrive while TVM calls Python, as its passes do. TVM passes on only exception types it
knows; the rest, even Ctrl-C, would become ``RuntimeError('')``.
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

# The CPU's sort functions, which TVM loads together with device backends.
_library = Path(_LOADED_LIBS["tvm_runtime"]._name)
with suppress(OSError):  # not in every build
    ctypes.CDLL(str(_library.with_name(_library.name.replace("runtime", "runtime_extra"))))


def let_pass(kind: type[BaseException]) -> None:
    """Let exceptions of this type pass through TVM, which rebuilds them from their text."""
    tvm_ffi.register_error(kind.__name__, kind)


let_pass(KeyboardInterrupt)
