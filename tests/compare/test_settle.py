# SPDX-License-Identifier: Apache-2.0
"""A large table is stepped on until its steps do not become shorter; a small one is not."""

import numpy as np
import pytest

from sparsetrain.compare import run, settle
from sparsetrain.compare.case import Case
from sparsetrain.compare.sweeps import Item

LARGE = settle.FROM_BYTES


def falling(first: float, last: float, steps: float):
    """Steps that approach `last`, and the clock that they move."""
    taken: list[float] = []

    def take(count: int) -> list[float]:
        numbers = len(taken) + np.arange(count)
        block = (last + (first - last) * np.exp(-numbers / steps)).tolist()
        taken.extend(block)
        return block

    return take, lambda: sum(taken)


@pytest.mark.parametrize(("first", "steps"), [(500e-6, 760), (60e-6, 300), (40e-6, 1)])
def test_steps_are_taken_until_they_are_about_as_short_as_they_become(first, steps):
    take, clock = falling(first, 40e-6, steps)
    taken = settle.settle(take, LARGE, clock)
    assert taken[0] == pytest.approx(first, rel=0.01)
    assert taken[-1] < 1.12 * 40e-6
    assert len(taken) >= settle.PATIENCE * settle.BLOCK


def test_what_falls_for_ever_ends():
    take, clock = falling(1.0, 0.0, 1000)
    assert sum(settle.settle(take, LARGE, clock)) < settle.SECONDS + settle.BLOCK


def test_a_small_table_lies_in_the_caches_anyway():
    assert settle.settle(None, LARGE - 1) == []


def test_the_first_steps_of_a_large_table_are_told_apart(monkeypatch):
    monkeypatch.setattr(settle, "FROM_BYTES", 600 * 8 * 4)
    small, large = (Case(rows, lookups=64, width=8) for rows in (300, 600))
    found = run([Item("rows", case, ("dense", "sparse")) for case in (small, large)])
    told = {(m.arm, m.case.rows): m.first_us for m in found.measurements}
    assert told.pop(("sparse", 600)) > 0 and set(told.values()) == {None}
