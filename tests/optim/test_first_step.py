# SPDX-License-Identifier: Apache-2.0
"""A first step compiles its program beside the kernels by which the path of updates is chosen."""

from math import inf

import numpy as np
import pytest

import sparsetrain as st
from sparsetrain.optim.paths.costs import remembered
from sparsetrain.runtime import threads
from sparsetrain.training import step
from tests import small_dlrm
from tests.small_dlrm import assert_same_state

RULES = {
    "by cost": (lambda: st.optim.adagrad(0.1), True),
    "sparse": (lambda: st.optim.adagrad(0.1, update="sparse"), False),
    "rows at once": (lambda: st.optim.adam(0.1), False),
}


@pytest.fixture
def works(place, monkeypatch):
    """How many things were compiled at once by each first step."""
    found, together = [], step.together

    def noting(given):
        found.append(len(given))
        return together(given)

    monkeypatch.setattr(step, "together", noting)
    monkeypatch.setattr(remembered, "_known", {})
    monkeypatch.setattr(remembered, "WAITED", inf)  # whoever has the cores meanwhile
    return found


def trained(optimizer) -> dict[str, np.ndarray]:
    trainer = st.Trainer(small_dlrm.model(), optimizer, target="cpu")
    for seed in range(2):
        trainer.step(small_dlrm.batch(16, seed))
    return trainer.state_dict()


@pytest.mark.parametrize("rule", RULES)
def test_the_program_is_compiled_beside_kernels_that_a_choice_needs(rule, works):
    make, chooses = RULES[rule]
    first = trained(make())
    assert [count > 1 for count in works] == [True] * chooses
    works.clear()
    remembered._known.clear()  # as in the next process, which finds the figures on disk
    assert_same_state(trained(make()), first)
    assert not works


def test_one_core_makes_the_same(works, monkeypatch):
    two = trained(st.optim.sgd(0.1))
    monkeypatch.setattr(threads, "max_worker_threads", lambda: 1)
    monkeypatch.setenv("SPARSETRAIN_CACHE", "")
    assert_same_state(trained(st.optim.sgd(0.1)), two)


def test_a_program_that_fails_to_compile_tells_so(works, monkeypatch):
    def fail(program):
        raise RuntimeError("LLVM failed")

    monkeypatch.setattr(step.FusedProgram, "compile", fail)
    with pytest.raises(RuntimeError, match="LLVM failed"):
        trained(st.optim.adagrad(0.1))
    assert len(works) == 1
