# SPDX-License-Identifier: Apache-2.0
"""A stream of copies that is as late as CUDA may be."""

from __future__ import annotations

import ctypes
import threading
from typing import Any


class LateCopies:
    """Stands for `sparsetrain.backends.cuda.streams.CopyStream`.

    A copy happens when the computation is told to wait for it; until then its target holds 0xFF,
    and its source may not change.
    """

    def __init__(self) -> None:
        self._pending: list[tuple[Any, Any, int]] = []
        self._lock = threading.Lock()
        self.ordered_after_compute = 0  # how often copies were told to wait

    def copy_(self, target: Any, source: Any, size: int) -> None:
        """Note a copy, and spoil its target."""
        with self._lock:
            ctypes.memset(target.data_ptr(), 0xFF, size)
            self._pending.append((target, source, size))

    def compute_waits(self) -> None:
        """Make the copies that were begun."""
        with self._lock:
            for target, source, size in self._pending:
                ctypes.memmove(target.data_ptr(), source.data_ptr(), size)
            self._pending.clear()

    def copies_wait(self) -> None:
        """Count: blocks run at once here, so there is nothing to wait for."""
        self.ordered_after_compute += 1

    def finish(self) -> None:
        """Make the copies that were begun."""
        self.compute_waits()


class Refusing:
    """Stands for CUDA's runtime after an error."""

    def cudaMemcpyAsync(self, *_arguments: Any) -> int:  # noqa: N802  (CUDA's name)
        """An illegal address, as after a kernel that wrote out of bounds."""
        return 700
