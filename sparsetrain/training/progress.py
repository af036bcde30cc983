# SPDX-License-Identifier: Apache-2.0
"""Progress of a long run on stderr: rows per second, loss and time left.

A `Progress` is called for every batch, but shows something only after some time has passed, so a
call costs about a microsecond. It shows a bar on a terminal or in a notebook, elsewhere a line
every few seconds.
"""

import math
import sys
import time
from collections.abc import Callable
from importlib import import_module
from typing import Any, Literal, TextIO

from sparsetrain.errors import ConfigError
from sparsetrain.system.html import escape

# The loss shown is a moving average over about this many batches.
_SMOOTHING_BATCHES = 50


class Progress:
    """Interface that `Trainer.fit` calls: `start` once, `advance` per batch, `finish` always.

    All four methods are required. `note` is called rarely, and mostly after the last batch.
    """

    def start(self, total: int | None, title: str = "") -> None:
        """Begin an epoch named `title` with `total` rows, None if their number is unknown."""

    def advance(self, rows: int, loss: float) -> None:
        """Count `rows` more rows, with the mean loss `loss`."""

    def note(self, text: str) -> None:
        """Show a message on a line of its own."""

    def finish(self) -> None:
        """End, after the last batch or after an error."""


_SETTLED = 1.0  # seconds until the rate is reliable enough to estimate the time left
_CALLS = ("start", "advance", "note", "finish")


class Silent(Progress):
    """Shows nothing."""


class Lines(Progress):
    """Plain lines for logs and pipes: one every `interval` seconds and one at the end.

    The rate leaves out the first batch, which waits for compilation. The loss is a moving average
    (a plain mean at first); the last line has the mean of all rows, like the epoch's record.
    """

    def __init__(
        self,
        stream: TextIO | None = None,
        interval: float = 5.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._stream = stream if stream is not None else sys.stderr
        self._interval, self._clock = interval, clock

    def start(self, total: int | None, title: str = "") -> None:
        """Begin counting."""
        self._total, self._title = total, title
        self._began = self._clock()
        self._due = self._began + self._interval
        self._rows = self._batches = 0
        self._first = 0, self._began  # rows of the first batch, and the time when it ended
        self._loss = self._loss_sum = 0.0

    def advance(self, rows: int, loss: float) -> None:
        """Count a batch; show the progress if a line is due."""
        now = self._clock()
        if not self._batches:
            self._first = rows, now
        self._rows += rows
        self._batches += 1
        self._loss += (loss - self._loss) / min(self._batches, _SMOOTHING_BATCHES)
        self._loss_sum += rows * loss if math.isfinite(loss) else 0.0  # else it was skipped
        if now >= self._due:
            self._due = now + self._interval
            self._show()

    def note(self, text: str) -> None:
        """Print the message."""
        print(text, file=self._stream, flush=True)

    def finish(self) -> None:
        """Print rows, rate, loss and time of the whole run, including its first batch."""
        if self._rows:
            self._loss = self._loss_sum / self._rows
            text, _ = self._line(format_count(self._rows, "row"), 0, self._began)
            self.note(f"{text}, took {format_seconds(self._clock() - self._began)}")

    def _show(self) -> None:
        self.note(self._state())

    def _state(self) -> str:
        """Return the progress in one line, without parts that are unknown."""
        text, rate = self._line(self._done(), *self._first)
        settled = self._clock() - self._first[1] >= _SETTLED
        if rate and settled and self._total is not None:
            text += f", {format_seconds(max(self._total - self._rows, 0) / rate)} left"
        return text

    def _done(self) -> str:
        if not self._total:
            return format_count(self._rows, "row")
        share = self._rows / self._total
        return f"{self._rows:,} of {format_count(self._total, 'row')} ({share:.0%})"

    def _line(self, done: str, before: int, since: float) -> tuple[str, float]:
        """Return rows, rate and loss in a line, and the rate since the first batch, or 0."""
        seconds = self._clock() - since
        rate = (self._rows - before) / seconds if seconds > 0 else 0.0
        parts = [f"{self._title}: {done}" if self._title else done]
        parts += [f"{rate:,.0f} rows/s"] if rate else []
        parts += [f"loss {self._loss:.4f}"] if self._batches else []
        return ", ".join(parts), rate


class Bar(Lines):
    """A bar for terminals that redraws at most ten times a second.

    The training thread draws it, since on a small machine a separate refresh thread would compete
    with the kernels' threads.
    """

    _bar: Any = None

    def __init__(self, stream: TextIO | None = None, **options: Any) -> None:
        super().__init__(stream, 0.1, **options)

    def start(self, total: int | None, title: str = "") -> None:
        """Draw the empty bar."""
        from rich.console import Console
        from rich.progress import BarColumn, TextColumn
        from rich.progress import Progress as RichProgress

        super().start(total, title)
        columns = BarColumn(bar_width=9), TextColumn("{task.description}")
        console = Console(file=self._stream)
        self._bar = RichProgress(*columns, console=console, auto_refresh=False)
        self._bar.add_task("starting", total=total)
        self._bar.start()

    def note(self, text: str) -> None:
        """Print the message above the bar, or as a plain line if there is no bar."""
        if self._bar is None:
            super().note(text)
        else:
            self._bar.console.print(text, highlight=False)

    def finish(self) -> None:
        """Draw the final bar and restore the cursor; safe to call twice."""
        if self._bar is not None:
            self._loss = self._loss_sum / max(self._rows, 1)
            self._show()
            self._bar.stop()
            self._bar = None

    def _done(self) -> str:
        """Return the share of rows done without their number, so that the line fits 80 columns."""
        if not self._total:
            return super()._done()
        return f"{self._rows / self._total:.0%} of {format_count(self._total, 'row')}"

    def _show(self) -> None:
        (task,) = self._bar.task_ids
        self._bar.update(task, completed=self._rows, description=self._state())
        self._bar.refresh()


class Notebook(Lines):
    """A bar for notebooks that is updated in place; notes are plain output.

    Parameters
    ----------
    display : callable
        ``IPython.display.display``.
    """

    _cell: Any = None

    def __init__(self, display: Callable[..., Any], **options: Any) -> None:
        super().__init__(sys.stdout, 0.2, **options)
        self._display = display

    def start(self, total: int | None, title: str = "") -> None:
        """Show the empty bar."""
        super().start(total, title)
        self._cell = self._display(self._bundle(title), raw=True, display_id=True)

    def finish(self) -> None:
        """Show the final state; safe to call twice."""
        if self._cell is not None:
            self._loss = self._loss_sum / max(self._rows, 1)
            took = format_seconds(self._clock() - self._began)
            text, _ = self._line(self._done(), 0, self._began)
            self._cell.update(self._bundle(f"{text}, took {took}"), raw=True)
            self._cell = None

    def _show(self) -> None:
        self._cell.update(self._bundle(self._state()), raw=True)

    def _bundle(self, text: str) -> dict[str, str]:
        share = f' value="{self._rows}" max="{self._total}"' if self._total else ""
        return {"text/plain": text, "text/html": f"<progress{share}></progress> {escape(text)}"}


def _notebook() -> Callable[..., Any] | None:
    """Return IPython's `display`, or None unless this process is a notebook's kernel."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    if not hasattr(shell, "kernel"):
        return None
    display: Callable[..., Any] = import_module("IPython.display").display
    return display


def make_progress(
    progress: Progress | Literal["auto"] | None = "auto", stream: TextIO | None = None
) -> Progress:
    """Return the `Progress` for a caller's argument.

    Parameters
    ----------
    progress : Progress, "auto" or None
        An object is returned unchanged; None is silent; "auto" is a bar on a terminal and in a
        notebook, and lines elsewhere.
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
    display = _notebook() if stream is None else None
    if display is not None:
        return Notebook(display)
    stream = stream if stream is not None else sys.stderr
    return Bar(stream) if stream.isatty() else Lines(stream)


def format_count(count: int, noun: str) -> str:
    """Return a readable count: `1 row`, `2,000 rows`."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def format_seconds(seconds: float) -> str:
    """Return a readable duration: `0.4 s`, `8 s`, `3 min 20 s`, `2 h 05 min`."""
    if seconds < 1:
        return f"{seconds:.1g} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"
