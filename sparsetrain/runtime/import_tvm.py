# SPDX-License-Identifier: Apache-2.0
"""Import of TVM: without PyTorch, and such that interrupts pass through it.

TVM imports PyTorch where it is installed and can do without. It is most of the time that TVM's
import takes then, and 200 MB. Packages import this one before anything else of TVM. PyTorch that is
there already stays, and can be imported later.

A signal may come while TVM calls Python, as its passes do. TVM brings back exceptions whose type it
knows; any other, Ctrl-C too, came back as ``RuntimeError('')``.
"""

from __future__ import annotations

import sys
from threading import get_ident


class _WithoutTorch:
    """Finder by which one thread finds no PyTorch."""

    def __init__(self) -> None:
        self._thread = get_ident()

    def find_spec(self, name: str, *_: object) -> None:
        if name == "torch" and get_ident() == self._thread:
            raise ModuleNotFoundError("TVM is imported without PyTorch", name=name)


_finder = _WithoutTorch()
sys.meta_path.insert(0, _finder)
try:
    import tvm  # noqa: F401
    import tvm_ffi
finally:
    sys.meta_path.remove(_finder)


def let_pass(kind: type[BaseException]) -> None:
    """Let TVM bring back exceptions of this type, made anew of their text."""
    tvm_ffi.register_error(kind.__name__, kind)


let_pass(KeyboardInterrupt)
