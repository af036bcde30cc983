# SPDX-License-Identifier: Apache-2.0
"""Progress of a long run on stderr: rows per second, loss and time left.

A `Progress` is told of every batch; it decides by the clock alone when to show something, so that
a call costs about a microsecond. On a terminal it is a bar, elsewhere one line every few seconds.
"""

import sys
import time
from collections.abc import Callable
from typing import Any, Literal, NamedTuple, Protocol, TextIO

from sparsetrain.errors import ConfigError

# The loss shown is a moving average whose memory is about this many batches.
_SMOOTHING_BATCHES = 50


class Progress(Protocol):
    """What `Trainer.fit` calls: `start` once, `advance` per batch, `finish` always.

    All four are needed: a note comes seldom, and mostly after the last batch.
    """

    def start(self, total: int | None, title: str = "") -> None:
        """Begin; `total` rows are to come, None when unknown; `title` is that of the epoch."""

    def advance(self, rows: int, loss: float) -> None:
        """Count `rows` more rows, whose mean loss was `loss`."""

    def note(self, text: str) -> None:
        """Tell of something that happened, in a line of its own."""

    def finish(self) -> None:
        """End, after the last batch or after an error."""


_CALLS = ("start", "advance", "note", "finish")


class Snapshot(NamedTuple):
    """Where a run stands: counts of rows, rates per second, times in seconds.

    The rate is that of the batches after the first, which waits for kernels to be compiled; before
    there is a second batch it is not known, nor is the time left.
    """

    rows: int
    total: int | None
    seconds: float
    rows_per_s: float | None
    loss: float | None
    seconds_left: float | None
    title: str = ""

    def describe(self) -> str:
        """Return the state in one line; what is not known is left out."""
        parts = [format_count(self.rows, "row")]
        if self.total:
            of_total = format_count(self.total, "row")
            parts = [f"{self.rows:,} of {of_total} ({self.rows / self.total:.0%})"]
        if self.title:
            parts[0] = f"{self.title}: {parts[0]}"
        if self.rows_per_s is not None:
            parts.append(f"{self.rows_per_s:,.0f} rows/s")
        if self.loss is not None:
            parts.append(f"loss {self.loss:.4f}")
        if self.seconds_left is not None:
            parts.append(f"{format_seconds(self.seconds_left)} left")
        return ", ".join(parts)


class Meter:
    """Counts rows and smooths the loss; shows nothing.

    Parameters
    ----------
    total : int, optional
        Rows to come.
    clock : callable
        Returns seconds from any fixed moment.
    title : str
        What the rows are of.
    """

    def __init__(
        self, total: int | None, clock: Callable[[], float] = time.monotonic, title: str = ""
    ) -> None:
        self._total, self._title = total, title
        self._clock = clock
        self._started = clock()
        self._rows = 0
        self._first: tuple[int, float] | None = None  # rows of the first batch, when it ended
        self._batches = 0
        self._loss = 0.0

    def add(self, rows: int, loss: float) -> None:
        """Count one batch; a plain mean at first, a moving one later."""
        self._first = self._first or (rows, self._clock())
        self._rows += rows
        self._batches += 1
        self._loss += (loss - self._loss) / min(self._batches, _SMOOTHING_BATCHES)

    def snapshot(self) -> Snapshot:
        """Return where the run stands now."""
        now = self._clock()
        rate, left = self._rate(now), None
        if self._total is not None and rate:
            left = max(self._total - self._rows, 0) / rate
        loss = self._loss if self._batches else None
        passed = now - self._started
        return Snapshot(self._rows, self._total, passed, rate, loss, left, self._title)

    def _rate(self, now: float) -> float | None:
        if self._first is None:
            return None
        rows, ended = self._first
        more, seconds = self._rows - rows, now - ended
        return more / seconds if more and seconds > 0 else None


class Lines:
    """Plain lines, one every `interval` seconds and one at the end: for logs and pipes."""

    def __init__(
        self,
        stream: TextIO | None = None,
        interval: float = 5.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._stream = stream if stream is not None else sys.stderr
        self._interval = interval
        self._clock = clock
        self._meter = Meter(None, clock)
        self._due = 0.0

    def start(self, total: int | None, title: str = "") -> None:
        """Begin counting."""
        self._meter = Meter(total, self._clock, title)
        self._due = self._clock() + self._interval

    def advance(self, rows: int, loss: float) -> None:
        """Count a batch; print a line if one is due."""
        self._meter.add(rows, loss)
        if self._clock() >= self._due:
            self._due = self._clock() + self._interval
            self._print(self._meter.snapshot().describe())

    def note(self, text: str) -> None:
        """Print it."""
        self._print(text)

    def finish(self) -> None:
        """Print what the whole run came to, the first batch included."""
        end = self._meter.snapshot()
        if end.rows:
            rate = end.rows / end.seconds if end.seconds > 0 else None
            done = end._replace(total=None, seconds_left=None, rows_per_s=rate)
            self._print(f"{done.describe()}, took {format_seconds(end.seconds)}")

    def _print(self, text: str) -> None:
        print(text, file=self._stream, flush=True)


class Bar:
    """A bar that redraws at most ten times a second: for terminals.

    It draws from the training thread. A refreshing thread of its own would take turns with the
    kernels' threads on a small machine.
    """

    def __init__(
        self,
        stream: TextIO | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._stream = stream if stream is not None else sys.stderr
        self._clock = clock
        self._meter = Meter(None, clock)
        self._due = 0.0
        self._bar: Any = None
        self._task: Any = None

    def start(self, total: int | None, title: str = "") -> None:
        """Draw the empty bar."""
        from rich.console import Console
        from rich.progress import BarColumn, TextColumn
        from rich.progress import Progress as RichProgress

        self._meter = Meter(total, self._clock, title)
        console = Console(file=self._stream)
        self._bar = RichProgress(
            BarColumn(), TextColumn("{task.description}"), console=console, auto_refresh=False
        )
        self._task = self._bar.add_task("starting", total=total)
        self._bar.start()

    def advance(self, rows: int, loss: float) -> None:
        """Count a batch; redraw if it is time."""
        self._meter.add(rows, loss)
        if self._clock() >= self._due:
            self._due = self._clock() + 0.1
            self._draw()

    def note(self, text: str) -> None:
        """Print it above the bar, or where there was one."""
        if self._bar is None:
            print(text, file=self._stream, flush=True)
        else:
            self._bar.console.print(text, highlight=False)

    def finish(self) -> None:
        """Draw the last state and give the cursor back; safe to call twice."""
        if self._bar is not None:
            self._draw()
            self._bar.stop()
            self._bar = None

    def _draw(self) -> None:
        now = self._meter.snapshot()
        self._bar.update(self._task, completed=now.rows, description=now.describe())
        self._bar.refresh()


class Silent:
    """Shows nothing."""

    def start(self, total: int | None, title: str = "") -> None:
        """Do nothing."""

    def advance(self, rows: int, loss: float) -> None:
        """Do nothing."""

    def note(self, text: str) -> None:
        """Do nothing."""

    def finish(self) -> None:
        """Do nothing."""


def make_progress(
    progress: Progress | Literal["auto"] | None = "auto", stream: TextIO | None = None
) -> Progress:
    """Return the progress that a caller's argument asks for.

    Parameters
    ----------
    progress : Progress, "auto" or None
        An object is returned as it is; None is silent; "auto" is a bar on a terminal and lines
        elsewhere.
    stream : text stream, optional
        Where "auto" writes; stderr by default.
    """
    if progress is None:
        return Silent()
    if progress != "auto":
        if not all(callable(getattr(progress, name, None)) for name in _CALLS):
            raise ConfigError(
                f"progress is {progress!r:.60}; give 'auto', None or an object with "
                f"{', '.join(_CALLS)}"
            )
        return progress
    stream = stream if stream is not None else sys.stderr
    return Bar(stream) if stream.isatty() else Lines(stream)


def format_count(count: int, noun: str) -> str:
    """Return a count of things for people: `1 row`, `2,000 rows`."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def format_seconds(seconds: float) -> str:
    """Return a duration for people: `8 s`, `3 min 20 s`, `2 h 05 min`."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"
