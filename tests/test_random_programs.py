# SPDX-License-Identifier: Apache-2.0
"""A few random programs, of thousands by `python -m tests.random_programs`; a fault is found."""

import numpy as np
import pytest

from tests import random_programs
from tests.random_programs import OPERATORS, Refused, check, draw, main, shrunk


# Among them what was found by hundreds: a bag whose rows are joined (6), a reshape to 3 * B.
@pytest.mark.parametrize(("seed", "most"), [*((n, 8) for n in range(10)), (2096, 12), (5166, 12)])
def test_a_random_program_is_right_or_refused(seed, most):
    program = draw(seed, most)
    try:
        check(program)
    except Refused as error:
        assert "\n" not in str(error)


def test_a_fault_is_found_and_shrunk_to_what_it_needs(monkeypatch, capsys):
    """NumPy's tanh is made wrong, as if ours were."""
    wrong = OPERATORS["tanh"]._replace(numpy=lambda s, c, x: np.tanh(x) * 1.01)
    monkeypatch.setitem(random_programs.OPERATORS, "tanh", wrong)
    has_tanh = (seed for seed in range(100) if "tanh" in str(draw(seed)))
    seed = next(seed for seed in has_tanh if random_programs.failure_of(draw(seed)))
    small = shrunk(draw(seed))
    assert "tanh" in str(small) and len(small.lines) < len(draw(seed).lines)
    assert main(["--count", "1", "--seed", str(seed)]) == 1
    told = capsys.readouterr().out
    assert f"seed {seed}: AssertionError: the" in told and str(small) in told
