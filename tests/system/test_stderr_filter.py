# SPDX-License-Identifier: Apache-2.0
"""Known lines are dropped from standard error, and all else reaches it."""

import os
import subprocess
import sys
import threading
import time

import pytest

from sparsetrain.system.stderr_filter import filter_stderr


def is_known(line: bytes) -> bool:
    return b"Warning: known" in line


def test_what_is_not_a_known_line_reaches_standard_error(capfd):
    with filter_stderr(is_known):
        os.write(2, b"one\n[1] x.cc:7: Warning: known\ntwo\n")
    assert capfd.readouterr().err == "one\ntwo\n"


def test_an_error_leaves_standard_error_as_it_was(capfd):
    with pytest.raises(ZeroDivisionError), filter_stderr(is_known):
        os.write(2, b"before\n")
        raise ZeroDivisionError
    os.write(2, b"Warning: known\n")
    assert capfd.readouterr().err == "before\nWarning: known\n"


def test_threads_take_turns_and_give_standard_error_back(capfd):
    before, entered = os.fstat(2), threading.Event()

    def second():
        entered.set()
        with filter_stderr(lambda line: b"second" in line):
            os.write(2, b"of the second\nof all\n")

    thread = threading.Thread(target=second)
    with filter_stderr(is_known):
        thread.start()
        assert entered.wait(5)
        os.write(2, b"Warning: known\n")
    thread.join()
    assert os.path.samestat(os.fstat(2), before)
    assert capfd.readouterr().err == "of all\n"


def test_what_is_held_back_within_what_is_held_back_is_dropped_by_either(capfd):
    with filter_stderr(is_known), filter_stderr(lambda line: b"inner" in line):
        os.write(2, b"inner\nWarning: known\nleft\n")
    assert capfd.readouterr().err == "left\n"


def test_a_fork_waits_and_writes_where_its_parent_does(capfd):
    entered = threading.Event()

    def hold():
        with filter_stderr(is_known):
            entered.set()
            time.sleep(0.1)  # until the fork waits

    thread = threading.Thread(target=hold)
    thread.start()
    assert entered.wait(5)
    child = os.fork()
    if child == 0:
        os.write(2, b"Warning: known to the parent\n")
        os._exit(0)
    os.waitpid(child, 0)
    thread.join()
    assert capfd.readouterr().err == "Warning: known to the parent\n"


def test_a_process_without_standard_error_holds_nothing_back():
    code = (
        "from sparsetrain.system.stderr_filter import filter_stderr\n"
        "with filter_stderr(bool): print('in')"
    )
    command = ["sh", "-c", 'exec "$0" "$@" 2>&-', sys.executable, "-c", code]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True)
    assert (done.returncode, done.stdout) == (0, "in\n")
