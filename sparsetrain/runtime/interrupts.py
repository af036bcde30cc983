# SPDX-License-Identifier: Apache-2.0
"""Interrupts that pass through TVM.

A signal may come while TVM calls Python, as its passes do. TVM brings back exceptions whose type it
knows; any other, Ctrl-C too, came back as ``RuntimeError('')``.
"""

from __future__ import annotations

import tvm_ffi


def let_pass(kind: type[BaseException]) -> None:
    """Let TVM bring back exceptions of this type, made anew of their text."""
    tvm_ffi.register_error(kind.__name__, kind)


let_pass(KeyboardInterrupt)
