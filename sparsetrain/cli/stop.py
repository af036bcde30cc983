# SPDX-License-Identifier: Apache-2.0
"""SIGINT and SIGTERM: training stops after its batch and is saved, anything else stops at once.

A signal inside `StopSignals.deferred` only sets a flag, which the training loop polls after each
batch. Outside, and at the second signal, the handler raises `Stopped`. C code, for example during
imports, may lose or replace the exception: then it is raised again.
"""

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

from sparsetrain.errors import SparsetrainError

_SIGNALS = (signal.SIGINT, signal.SIGTERM)
_AGAIN = 2.0  # seconds until a lost exception is raised again, once


class Stopped(BaseException):
    """A signal ended the command; no `except Exception` catches this."""

    def __init__(self, signum: int | str) -> None:
        super().__init__(signum)
        self.signum = int(signum)  # text if it passed through TVM
        self.name = signal.Signals(self.signum).name


class StopSignals:
    """Handles both signals inside a `with` block, and restores the old handlers at its end."""

    def __init__(self) -> None:
        self.received: int | None = None
        self._raised = 0  # the signal for which `Stopped` was raised
        self._deferring = False
        self._previous: dict[signal.Signals, Any] = {}

    def __enter__(self) -> "StopSignals":
        from sparsetrain.runtime.import_tvm import let_pass

        let_pass(Stopped)
        for number in _SIGNALS:
            self._previous[number] = signal.signal(number, self._handle)
        self._previous[signal.SIGALRM] = signal.signal(signal.SIGALRM, self._raise_again)
        return self

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        if self._raised:
            signal.setitimer(signal.ITIMER_REAL, 0)
        for number, handler in self._previous.items():
            signal.signal(number, handler)
        if self._raised and isinstance(error, Exception) and not _is_ours(error):
            raise Stopped(self._raised) from error

    @property
    def name(self) -> str | None:
        """The name of the received signal, or None."""
        return None if self.received is None else signal.Signals(self.received).name

    def requested(self) -> bool:
        """Return whether a signal was received; the argument `stop` of `Trainer.fit`."""
        return self.received is not None

    @contextmanager
    def deferred(self) -> Iterator[None]:
        """Make the first signal in this block only set the flag."""
        self._deferring = True
        try:
            yield
        finally:
            self._deferring = False

    def raise_if_requested(self) -> None:
        """Raise `Stopped` for a deferred signal."""
        if self.received is not None:
            raise Stopped(self.received)

    def _handle(self, signum: int, frame: FrameType | None) -> None:
        first = self.received is None
        self.received = signum
        if not (first and self._deferring):
            self._raised = signum
            signal.setitimer(signal.ITIMER_REAL, _AGAIN)
            raise Stopped(signum)
        # os.write, since the handler may interrupt a print that holds stderr's buffer.
        os.write(2, b"\nsparsetrain: stopping after this batch; a second signal stops at once\n")

    def _raise_again(self, _signum: int, _frame: FrameType | None) -> None:
        error = sys.exc_info()[1]
        while error is not None and not isinstance(error, Stopped):
            error = error.__context__
        if error is None:  # else `Stopped` is being handled
            raise Stopped(self._raised)


def _is_ours(error: Exception) -> bool:
    """Return whether an error has its own cause, such as a full disk, and not the signal."""
    return isinstance(error, (SparsetrainError, OSError, MemoryError))
