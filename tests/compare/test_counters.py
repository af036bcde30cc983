# SPDX-License-Identifier: Apache-2.0
"""Counters count where the system lets them, and say why where it does not."""

import mmap

import pytest

from sparsetrain.compare import counters

PAGE_FAULTS = counters.Event(1, 2)  # the system counts them itself, without hardware


def test_page_faults_of_new_memory_are_counted():
    if counters.why_not(PAGE_FAULTS):
        pytest.skip(counters.why_not(PAGE_FAULTS))
    with mmap.mmap(-1, 100 * mmap.PAGESIZE) as new:
        found = counters.count(
            PAGE_FAULTS,
            lambda: [new.write(b"1" * mmap.PAGESIZE) for _ in range(100)],
        )
    assert found > 0


def test_an_event_that_there_is_not_is_none_and_the_work_is_done():
    done = []
    assert counters.count(counters.Event(77, 0), lambda: done.append(1)) is None
    assert done == [1]
    assert counters.why_not(counters.Event(77, 0)).startswith("not counted: ")
