# SPDX-License-Identifier: Apache-2.0
"""Progress: what is shown, when, and where."""

import io
import math
import re
import sys
from types import ModuleType, SimpleNamespace

import pytest

from sparsetrain.training.progress import (
    Bar,
    Lines,
    Notebook,
    Silent,
    format_count,
    format_seconds,
    make_progress,
)
from tests import small_dlrm


class Clock:
    """A clock that moves only when told."""

    def __init__(self):
        self.now = 100.0

    def __call__(self):
        return self.now


class Terminal(io.StringIO):
    def isatty(self):
        return True


def lines_of(batches, total, seconds_per_batch=1.0, interval=5.0):
    clock, stream = Clock(), io.StringIO()
    progress = Lines(stream, interval=interval, clock=clock)
    progress.start(total)
    for rows, loss in batches:
        clock.now += seconds_per_batch
        progress.advance(rows, loss)
    progress.finish()
    return stream.getvalue().splitlines()


def bar_of(batches, total, seconds=0.0, name=""):
    clock, stream = Clock(), Terminal()
    bar = Bar(stream, clock=clock)
    bar.start(total, name)
    for rows, loss in batches:
        clock.now += seconds
        bar.advance(rows, loss)
    bar.finish()
    bar.finish()  # which does nothing
    return stream.getvalue()


def test_lines_come_by_the_clock_and_once_at_the_end():
    lines = lines_of([(100, 0.5)] * 12, total=2_000)
    assert lines == [
        "500 of 2,000 rows (25%), 100 rows/s, loss 0.5000, 15 s left",
        "1,000 of 2,000 rows (50%), 100 rows/s, loss 0.5000, 10 s left",
        "1,200 rows, 100 rows/s, loss 0.5000, took 12 s",
    ]


def test_the_rate_leaves_out_the_first_batch_which_waits_for_compiling():
    clock, stream = Clock(), io.StringIO()
    progress = Lines(stream, interval=5.0, clock=clock)
    progress.start(1_300)
    for seconds in (7, 2, 2, 2):
        clock.now += seconds
        progress.advance(100, 0.5)
    progress.finish()
    assert stream.getvalue().splitlines() == [
        "100 of 1,300 rows (8%), loss 0.5000",
        "400 of 1,300 rows (31%), 50 rows/s, loss 0.5000, 18 s left",
        "400 rows, 31 rows/s, loss 0.5000, took 13 s",
    ]


def test_an_unknown_total_leaves_out_the_time_left():
    assert lines_of([(100, 0.5)] * 5, total=None)[0] == "500 rows, 100 rows/s, loss 0.5000"


@pytest.mark.parametrize("count, text", [(0, "0 rows"), (1, "1 row"), (2_000, "2,000 rows")])
def test_counts_are_for_people(count, text):
    assert format_count(count, "row") == text


def test_one_row_is_no_rows():
    assert lines_of([(1, 0.5)], total=1, interval=1.0) == [
        "1 of 1 row (100%), loss 0.5000",
        "1 row, 1 rows/s, loss 0.5000, took 1 s",
    ]


def test_a_run_without_rows_prints_nothing():
    assert lines_of([], total=100) == []


def test_more_rows_than_announced_leave_no_negative_time():
    assert lines_of([(100, 0.5)] * 5, total=300)[0].endswith("0 s left")


def test_the_loss_shown_follows_training():
    batches = [(1, 1.0)] * 100 + [(1, 0.0)] * 500
    assert "loss 0.0000" in lines_of(batches, total=None)[-2]


def test_the_last_line_has_the_mean_over_all_rows_of_which_skipped_ones_add_nothing():
    batches = [(1, 1.0)] * 100 + [(3, 0.0)] * 100 + [(100, math.inf)]
    assert "loss 0.2000" in lines_of(batches, total=None)[-1]
    assert "loss 0.2500" in bar_of(batches[:-1], 400).rpartition("100% of 400 rows")[2]


def test_the_loss_shown_is_the_mean_of_the_first_batches():
    assert "loss 3.0000" in lines_of([(1, 1.0), (1, 2.0), (1, 6.0)], total=None)[-1]


def test_a_bar_shows_rate_loss_and_time_left():
    shown = bar_of([(250, 0.25)] * 4, 2_000, seconds=0.5)
    assert "50% of 2,000 rows, 500 rows/s, loss 0.2500, 2 s left" in shown


def test_a_bar_has_room_for_a_long_run_in_80_columns(monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    shown = bar_of([(249_000, 0.4965)] * 3, 1_000_000, seconds=1.0, name="epoch 1")
    assert "epoch 1: 75% of 1,000,000 rows, 249,000 rows/s, loss 0.4965, 1 s left" in shown


def test_the_time_left_is_not_told_by_the_first_batches():
    assert "left" not in bar_of([(10, 0.25)] * 2, 2_000, seconds=0.3)


@pytest.mark.parametrize(
    "progress, stream, kind",
    [
        ("auto", io.StringIO(), Lines),
        ("auto", Terminal(), Bar),
        (None, Terminal(), Silent),
        (Silent(), Terminal(), Silent),
    ],
)
def test_the_stream_decides_between_bar_and_lines(progress, stream, kind):
    assert type(make_progress(progress, stream)) is kind


@pytest.mark.parametrize(
    "seconds, text",
    [
        (0.0, "0 s"),
        (0.43, "0.4 s"),
        (0.996, "1 s"),
        (59.4, "59 s"),
        (59.6, "1 min 00 s"),
        (200, "3 min 20 s"),
        (7500, "2 h 05 min"),
    ],
)
def test_durations_read_like_speech(seconds, text):
    assert format_seconds(seconds) == text


def test_a_note_after_the_end_is_printed_where_the_bar_was():
    for shown in (Lines, Bar):
        stream = Terminal()
        shown(stream).note("said last")
        assert stream.getvalue() == "said last\n"


class Shell:
    """A stand-in for IPython: a kernel, and cells whose contents are updated."""

    def __init__(self, monkeypatch, kernel=True):
        self.cells = []
        shell = SimpleNamespace(**({"kernel": None} if kernel else {}))
        package = ModuleType("IPython")
        package.get_ipython = lambda: shell
        package.display = ModuleType("IPython.display")
        package.display.display = self.display
        monkeypatch.setitem(sys.modules, "IPython", package)
        monkeypatch.setitem(sys.modules, "IPython.display", package.display)

    def display(self, bundle, *, raw, display_id):
        assert raw and display_id
        cell = [bundle]
        self.cells.append(cell)
        return SimpleNamespace(update=lambda bundle, raw: cell.append(bundle))


def test_a_notebook_has_a_bar_in_place_of_lines_on_stderr(monkeypatch, capsys):
    shell = Shell(monkeypatch)
    trainer, batches = small_dlrm.trainer(), [small_dlrm.batch(8)] * 3
    trainer.fit(batches, validation=batches[0], epochs=2)
    assert [cell[0]["text/plain"] for cell in shell.cells] == ["epoch 1 of 2", "epoch 2 of 2"]
    last = shell.cells[1][-1]
    assert re.match("epoch 2 of 2: .*24 rows.*, loss 0.*, took", last["text/plain"])
    assert last["text/html"].startswith("<progress")
    out, err = capsys.readouterr()
    assert err == "" and "epoch 2 is over, step 6: valid auc" in out


def test_the_bar_of_a_notebook_shows_the_share_that_is_done(monkeypatch):
    shell, clock = Shell(monkeypatch), Clock()
    progress = Notebook(shell.display, clock=clock)
    progress.start(100, "epoch <1>")
    clock.now += 1
    progress.advance(40, 0.5)
    html = shell.cells[0][-1]["text/html"]
    assert html.startswith('<progress value="40" max="100"></progress> epoch &lt;1&gt;: 40 of 100')


def test_a_shell_without_a_notebook_has_lines(monkeypatch):
    Shell(monkeypatch, kernel=False)
    assert type(make_progress(stream=None)) is Lines
