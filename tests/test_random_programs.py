# SPDX-License-Identifier: Apache-2.0
"""A few random programs, of thousands by `python -m tests.random_programs`; a fault is found."""

import numpy as np
import pytest

from tests import random_programs
from tests.helpers import slow_except
from tests.random_operators import OPERATORS
from tests.random_programs import Line, Program, Refused, check, draw, main, shrunk


@pytest.mark.parametrize("seed", slow_except([1, 2], range(4)))
def test_a_random_program_is_right_or_refused(seed):
    try:
        check(draw(seed, most=8))
    except Refused as error:
        assert "\n" not in str(error)


# What the others found.
FOUND = {
    "a bag, B + 1 - 1 rows, joined with B": (
        Line("bag", (), ("users", "mean"), ("B", 1, 3)),
        Line("cos", (0,), None, ("B", 1, 3)),
        Line("concat", (1, 0), 0, ("(B + B)", 1, 3)),
    ),
    "a reshape to 3 * B": (
        Line("dense", (), ("B", 3), ("B", 3)),
        Line("permute", (0,), [1, 0], (3, "B")),
        Line("flatten", (1,), ("(3 * B)",), ("(3 * B)",)),
    ),
    "a reshape to (B + B) * 8": (
        Line("lookup", (), ("wide", "each"), ("B", 8)),
        Line("concat", (0, 0), 0, ("(B + B)", 8)),
        Line("flatten", (1,), ("((B + B) * 8)",), ("((B + B) * 8)",)),
        Line("cos", (2,), None, ("((B + B) * 8)",)),
    ),
}


@pytest.mark.parametrize("name", FOUND)
@pytest.mark.parametrize("dtype", slow_except(["float32"], ["float32", "float64"]))
def test_a_program_that_once_failed_is_right(name, dtype):
    check(Program(FOUND[name], dtype, seed=0))


def test_a_fault_is_found_and_shrunk_to_what_it_needs(monkeypatch, capsys):
    """NumPy's tanh is made wrong, as if ours were."""
    wrong = OPERATORS["tanh"]._replace(numpy=lambda s, c, x: np.tanh(x) * 1.01)
    monkeypatch.setitem(random_programs.OPERATORS, "tanh", wrong)
    lines = (
        Line("dense", (), (3,), (3,)),
        Line("cos", (0,), None, (3,)),
        Line("tanh", (0,), None, (3,)),
        Line("add", (1, 2), None, (3,)),
    )
    whole = Program(lines, "float32", seed=0)
    small = shrunk(whole)
    assert [line.operator for line in small.lines] == ["dense", "tanh"]
    monkeypatch.setattr(random_programs, "draw", lambda _seed: whole)
    assert main(["--count", "1", "--seed", "5"]) == 1
    told = capsys.readouterr().out
    assert "seed 5: AssertionError: the" in told and str(small) in told
