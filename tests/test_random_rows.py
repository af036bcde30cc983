# SPDX-License-Identifier: Apache-2.0
"""Random programs without their dead rows, of thousands by `python -m tests.random_rows`."""

import pytest

from tests import random_rows
from tests.helpers import UNOPTIMIZED, slow_except
from tests.random_programs import Line, Program, draw
from tests.random_rows import compared, main


@pytest.mark.parametrize("first", slow_except([0], range(0, 200, 20)))
def test_random_programs_lose_their_dead_rows_and_keep_their_bits(first, monkeypatch):
    monkeypatch.setattr(random_rows, "TARGET", UNOPTIMIZED)
    spared = [compared(draw(seed), gradients=False)[0] for seed in range(first, first + 20)]
    assert sum(spared) > 5


def test_a_slice_of_an_axis_of_unknown_length_keeps_its_length(monkeypatch):
    """Rows that are computed stand beside others, which are taken from all."""
    monkeypatch.setattr(random_rows, "TARGET", UNOPTIMIZED)
    assert compared(draw(12042), gradients=False)[0]


@pytest.mark.parametrize("seed", [12213, 13159])
def test_values_without_columns_keep_all_rows(seed, monkeypatch):
    monkeypatch.setattr(random_rows, "TARGET", UNOPTIMIZED)
    compared(draw(seed), gradients=False)


def test_a_fault_is_found_and_shrunk_to_what_it_needs(monkeypatch, capsys):
    """Rows are read of another place than those that were asked for."""
    wrong = random_rows.eliminate_dead_rows

    def shifted(module, name, **options):
        other = random_rows.build(program, lambda s, x, n: random_rows.read_rows(s, x, n + 1))
        return wrong(other, name, **options)

    lines = (
        Line("lookup", (), ("items", "pairs"), ("B", 2, 4)),
        Line("tanh", (0,), None, ("B", 2, 4)),
        Line("cos", (0,), None, ("B", 2, 4)),
    )
    program = Program(lines, "float32", seed=0)
    monkeypatch.setattr(random_rows, "eliminate_dead_rows", shifted)
    monkeypatch.setattr(random_rows, "draw", lambda _seed: program)
    monkeypatch.setattr(random_rows, "TARGET", UNOPTIMIZED)
    assert main(["--count", "1", "--seed", "5"]) == 1
    assert "seed 5: AssertionError: the loss" in capsys.readouterr().out
