# SPDX-License-Identifier: Apache-2.0
"""Large memory: aligned, and no more than there is, whatever the system would promise."""

import pytest

from sparsetrain.system import memory


def test_memory_begins_at_a_huge_page():
    block = memory.aligned_empty(memory.LARGE)
    assert block.shape == (memory.LARGE,)
    assert block.ctypes.data % memory.ALIGNMENT == 0


def machine(patch, folder, **limits):
    """A machine of 8 GiB and 1 GiB of swap, and what its control group says."""
    (folder / "meminfo").write_text("MemTotal:  8388608 kB\nSwapTotal: 1048576 kB\nX: y\n")
    for name, limit in limits.items():
        (folder / f"memory.{name.replace('_', '.')}").write_text(f"{limit}\n")
    patch.setattr(memory, "_MEMINFO", folder / "meminfo")
    patch.setattr(memory, "_GROUP", folder)


@pytest.mark.parametrize(
    ("limits", "gib"),
    [
        ({}, 9),
        ({"max": "max"}, 9),
        ({"max": 2 << 30}, 3),
        ({"max": 2 << 30, "swap_max": "max"}, 3),
        ({"max": 2 << 30, "swap_max": 0}, 2),
        ({"max": 99 << 30}, 9),
    ],
)
def test_what_there_is_is_the_machines_or_the_containers(limits, gib, monkeypatch, tmp_path):
    machine(monkeypatch, tmp_path, **limits)
    assert memory.total_memory() == gib << 30


def test_free_memory_is_the_machines_or_what_the_container_has_left(monkeypatch, tmp_path):
    machine(monkeypatch, tmp_path, max=2 << 30, current=1 << 30)
    assert memory.free_memory() is None  # the system does not say
    with open(tmp_path / "meminfo", "a") as file:
        file.write("MemAvailable: 4194304 kB\n")
    assert memory.free_memory() == 1 << 30
    (tmp_path / "memory.max").write_text("max\n")
    assert memory.free_memory() == 4 << 30


def test_more_than_there_is_is_refused_before_the_system_is_asked(monkeypatch):
    monkeypatch.setattr(memory, "total_memory", lambda: memory.LARGE)
    monkeypatch.setattr(memory, "CHECKED_FROM", memory.LARGE)
    memory.aligned_empty(memory.LARGE)
    with pytest.raises(
        MemoryError,
        match=f"^{memory.LARGE + 1} bytes requested, but this machine has {memory.LARGE}$",
    ):
        memory.aligned_empty(memory.LARGE + 1)


def test_nothing_is_asked_for_what_every_machine_has(monkeypatch):
    monkeypatch.setattr(memory, "total_memory", lambda: pytest.fail("it was asked"))
    memory.aligned_empty(memory.LARGE)


def test_a_machine_that_does_not_tell_is_asked(monkeypatch, tmp_path):
    monkeypatch.setattr(memory, "_MEMINFO", tmp_path / "none")
    assert memory.total_memory() is None
    memory.check_fits_memory(2**80)
