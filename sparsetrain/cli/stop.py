# SPDX-License-Identifier: Apache-2.0
"""SIGINT and SIGTERM: training stops after its batch and is saved, all else stops at once.

A signal that arrives inside `StopSignals.deferred` only sets a flag, which the training loop polls
after each batch. Outside, and at the second signal, `Stopped` is raised where the program is.
"""

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Stopped(BaseException):
    """A signal ended the command; no `except Exception` on the way may swallow it."""

    def __init__(self, signum: int | str) -> None:
        super().__init__(signum)
        self.signum = int(signum)  # text where it came through TVM
        self.name = signal.Signals(self.signum).name


class StopSignals:
    """Takes over both signals inside a `with` block and gives them back at its end."""

    def __init__(self) -> None:
        self.received: int | None = None
        self._deferring = False
        self._previous: dict[signal.Signals, Any] = {}

    def __enter__(self) -> "StopSignals":
        from sparsetrain.runtime.import_tvm import let_pass

        let_pass(Stopped)
        for number in _SIGNALS:
            self._previous[number] = signal.signal(number, self._handle)
        return self

    def __exit__(self, *exception: object) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    @property
    def name(self) -> str | None:
        """The name of the signal that has come, or None."""
        return None if self.received is None else signal.Signals(self.received).name

    def requested(self) -> bool:
        """Return whether a signal has come; what `Trainer.fit` takes as `stop`."""
        return self.received is not None

    @contextmanager
    def deferred(self) -> Iterator[None]:
        """Let the first signal in this block only set the flag."""
        self._deferring = True
        try:
            yield
        finally:
            self._deferring = False

    def raise_if_requested(self) -> None:
        """Raise `Stopped` for a signal that was put off."""
        if self.received is not None:
            raise Stopped(self.received)

    def _handle(self, signum: int, frame: FrameType | None) -> None:
        first = self.received is None
        self.received = signum
        if not (first and self._deferring):
            raise Stopped(signum)
        # os.write, because a handler may interrupt a print that holds stderr's buffer.
        os.write(2, b"\nsparsetrain: stopping after this batch; a second signal stops at once\n")
