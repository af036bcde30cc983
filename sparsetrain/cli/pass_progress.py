# SPDX-License-Identifier: Apache-2.0
"""Progress of passes over the data: a line every few seconds, or one that a terminal rewrites."""

import sys
import time

from sparsetrain.training.progress import format_count, format_seconds


class PassProgress:
    """Shows passes on stderr; a context manager that ends a terminal's line.

    A line comes `every` so many seconds: by default 0.2 on a terminal, 5 elsewhere.
    """

    def __init__(self, every: float | None = None) -> None:
        self._rewrites = sys.stderr.isatty()
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
        if now - self._shown >= self._every or done >= 1:
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
            text, self._line = "\r" + text.ljust(len(self._line)), text
        print(text, end="" if self._rewrites else "\n", file=sys.stderr, flush=True)

    def _end_line(self) -> None:
        if self._line:
            print(file=sys.stderr)
            self._line = ""
