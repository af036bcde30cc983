# SPDX-License-Identifier: Apache-2.0
"""Large memory: aligned, and no more than there is, whatever the system would promise."""

import os

import pytest

from sparsetrain import memory


def test_memory_begins_at_a_huge_page():
    block = memory.aligned(memory.LARGE)
    assert block.shape == (memory.LARGE,)
    assert block.ctypes.data % memory.ALIGNMENT == 0


def test_the_machines_memory_is_known_where_it_tells():
    pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    assert memory.total() >= pages


def test_more_than_there_is_is_refused_before_the_system_is_asked(monkeypatch):
    monkeypatch.setattr(memory, "total", lambda: memory.LARGE)
    memory.aligned(memory.LARGE)
    with pytest.raises(
        MemoryError, match=f"^{memory.LARGE + 1} bytes are asked for, {memory.LARGE}"
    ):
        memory.aligned(memory.LARGE + 1)


def test_a_machine_that_does_not_tell_is_asked(monkeypatch, tmp_path):
    memory.total.cache_clear()
    monkeypatch.setattr(memory, "_MEMINFO", tmp_path / "none")
    assert memory.total() is None
    memory.refuse_more_than_all(2**80)
    memory.total.cache_clear()
