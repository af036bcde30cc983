# SPDX-License-Identifier: Apache-2.0
"""`StopSignals` where code in C loses the exception that it raises, or makes another of it."""

import signal
import subprocess
import sys
import time
from contextlib import suppress

import pytest

from sparsetrain.cli.stop import Stopped, StopSignals
from sparsetrain.errors import DataError


def test_a_lost_exception_is_raised_again():
    with pytest.raises(Stopped) as raised, StopSignals():
        with suppress(BaseException):
            signal.raise_signal(signal.SIGINT)
        time.sleep(30)
    assert raised.value.signum == signal.SIGINT


def test_another_exception_in_its_place_is_a_stop():
    with pytest.raises(Stopped), StopSignals():
        try:
            signal.raise_signal(signal.SIGTERM)
        except BaseException:
            raise AttributeError("partially initialized module") from None


def test_an_error_of_the_work_itself_stays():
    with pytest.raises(DataError), StopSignals() as stop, stop.deferred():
        signal.raise_signal(signal.SIGINT)
        raise DataError("a full disk")


def test_what_is_cleaned_up_on_the_way_is_not_disturbed():
    done = False
    with pytest.raises(Stopped), StopSignals():
        try:
            signal.raise_signal(signal.SIGINT)
        finally:
            time.sleep(2.5)  # longer than until it would be raised again
            done = True
    assert done and signal.getitimer(signal.ITIMER_REAL) == (0, 0)


@pytest.mark.parametrize("module", ["sparsetrain.cli.app", "pyarrow.lib"])
def test_an_interrupt_during_the_imports_prints_no_traceback(module):
    script = (
        "import os, signal, sys\n"
        "class Interrupt:\n"
        "    def find_spec(self, name, *_):\n"
        f"        if name == {module!r}: os.kill(os.getpid(), signal.SIGINT)\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "sys.meta_path.insert(0, Interrupt())\n"
        "sys.argv = ['sparsetrain', 'evaluate', 'run', 'rows']\n"
        "import sparsetrain.cli; sparsetrain.cli.run_and_exit()"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (-signal.SIGINT, "")
