# SPDX-License-Identifier: Apache-2.0
"""What is dropped from standard error, and that all else reaches it."""

import os
import threading

import pytest

from sparsetrain.quiet import without_lines


def is_known(line: bytes) -> bool:
    return b"Warning: known" in line


def test_what_is_not_a_known_line_reaches_standard_error(capfd):
    with without_lines(is_known):
        os.write(2, b"one\n[1] x.cc:7: Warning: known\ntwo\n")
    assert capfd.readouterr().err == "one\ntwo\n"


def test_an_error_leaves_standard_error_as_it_was(capfd):
    with pytest.raises(ZeroDivisionError), without_lines(is_known):
        os.write(2, b"before\n")
        raise ZeroDivisionError
    os.write(2, b"Warning: known\n")
    assert capfd.readouterr().err == "before\nWarning: known\n"


def test_threads_that_hold_back_at_once_share_it_and_the_last_gives_it_back(capfd):
    before, entered, first_left = os.fstat(2), threading.Event(), threading.Event()

    def second():
        with without_lines(lambda line: line == b"of the second\n"):
            entered.set()
            assert first_left.wait(5)
            os.write(2, b"Warning: known\nof the second\nof neither\n")

    thread = threading.Thread(target=second)
    with without_lines(is_known):
        thread.start()
        assert entered.wait(5)  # nobody waits for the other
        os.write(2, b"before\n")
    first_left.set()
    thread.join()
    assert os.path.samestat(os.fstat(2), before)
    assert capfd.readouterr().err == "before\nof neither\n"
    os.write(2, b"Warning: known\n")
    assert capfd.readouterr().err == "Warning: known\n"
