# SPDX-License-Identifier: Apache-2.0
"""Progress of passes over the data: a line every few seconds, or one that a terminal rewrites."""

import sys
import time
from typing import TextIO

from sparsetrain.training.progress import format_count, format_seconds


class PassProgress:
    """Shows passes on stderr; a context manager that ends a terminal's line.

    Parameters
    ----------
    stream : text stream, optional
        stderr by default.
    every : float, optional
        Seconds between two lines; 0.2 on a terminal, 5 elsewhere.
    """

    def __init__(self, stream: TextIO | None = None, every: float | None = None) -> None:
        self._stream = stream if stream is not None else sys.stderr
        self._rewrites = self._stream.isatty()
        self._every = every if every is not None else 0.2 if self._rewrites else 5.0
        self._name: str | None = None
        self._rows, self._began, self._shown = 0, 0.0, 0.0
        self._done, self._before, self._now = 0.0, 0.0, 0.0
        self._line = ""

    def __enter__(self) -> "PassProgress":
        self._now = self._shown = time.monotonic()
        return self

    def __exit__(self, *exception: object) -> None:
        self._end_line()

    def __call__(self, what: str, rows: int, done: float) -> None:
        """Count `rows` more rows of pass `what`, of which the share `done` is done."""
        now = time.monotonic()
        if what != self._name:
            self._end_line()
            self._name, self._rows, self._began = what, 0, self._now
            self._done = self._before = 0.0
        if rows and not self._rows:  # an earlier run did what is done by now
            self._before, self._began = self._done, self._now
        self._rows, self._done, self._now = self._rows + rows, done, now
        if now - self._shown < self._every and done < 1:
            return
        self._show(done, now)

    def _show(self, done: float, now: float) -> None:
        seconds = max(now - self._began, 1e-9)
        text = f"sparsetrain: {self._name} {done:.0%}"
        if self._rows:
            text += f", {format_count(self._rows, 'row')}, {self._rows / seconds:,.0f} rows/s"
        if self._before < done < 1:
            left = seconds * (1 - done) / (done - self._before)
            text += f", {format_seconds(left)} left"
        self._shown = now
        if self._rewrites:
            self._stream.write("\r" + text.ljust(len(self._line)))
            self._line = text
        else:
            self._stream.write(text + "\n")
        self._stream.flush()

    def _end_line(self) -> None:
        if self._line:
            self._stream.write("\n")
            self._line = ""
