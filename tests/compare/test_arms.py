# SPDX-License-Identifier: Apache-2.0
"""Every arm does the same work: the weights that come out are those of NumPy's formula."""

import numpy as np
import pytest

from sparsetrain import runtime
from sparsetrain.compare import ARMS, Case, arms

ROWS, STEPS = 40, 3
FORMULAS = ("sgd", "momentum", "adagrad", "rowwise_adagrad", "adam")
CASES = [Case(ROWS, lookups=24, width=4, formula=formula) for formula in FORMULAS]


def trained(case: Case, arm: str) -> np.ndarray:
    """The table after some steps from zeros."""
    step = ARMS[arm].prepare(case)
    *_, table = [step(gradient) for gradient in case.gradients(case.draw_ids(STEPS))]
    return runtime.as_numpy(table)


def reference(case: Case) -> np.ndarray:
    """Dense arithmetic in float64, of the arms' numbers."""
    weight = np.zeros((case.rows, case.width))
    state: dict[str, np.ndarray] = {}
    for number, sparse in enumerate(case.gradients(case.draw_ids(STEPS)), start=1):
        gradient = np.zeros_like(weight)
        np.add.at(gradient, runtime.as_numpy(sparse.indices), runtime.as_numpy(sparse.values))
        weight = weight - arms.LEARNING_RATE * DIRECTIONS[case.formula](gradient, state, number)
    return weight


def _momentum(g, state, number):
    state["v"] = 0.9 * state.get("v", 0.0) + g
    return state["v"]


def _adagrad(g, state, number):
    state["s"] = state.get("s", np.zeros_like(g)) + g * g
    return g / (np.sqrt(state["s"]) + 1e-10)


def _rowwise(g, state, number):
    state["s"] = state.get("s", np.zeros((len(g), 1))) + (g * g).mean(axis=1, keepdims=True)
    return g / (np.sqrt(state["s"]) + 1e-10)


def _adam(g, state, number):
    state["m"] = 0.9 * state.get("m", 0.0) + 0.1 * g
    state["v"] = 0.999 * state.get("v", 0.0) + 0.001 * g * g
    mean, square = state["m"] / (1 - 0.9**number), state["v"] / (1 - 0.999**number)
    return mean / (np.sqrt(square) + 1e-8)


DIRECTIONS = {
    "sgd": lambda g, state, number: g,
    "momentum": _momentum,
    "adagrad": _adagrad,
    "rowwise_adagrad": _rowwise,
    "adam": _adam,
}


@pytest.mark.parametrize("arm", ["stock", "dense"])
@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_dense_arm_is_the_dense_formula(case, arm):
    if ARMS[arm].unsupported(case):
        pytest.skip(ARMS[arm].unsupported(case))
    np.testing.assert_allclose(trained(case, arm), reference(case), atol=2e-5)


@pytest.mark.parametrize("case", [c for c in CASES if not ARMS["exact"].unsupported(c)], ids=str)
def test_the_exact_arm_has_the_dense_rows_wherever_it_wrote_last(case):
    last = np.unique(list(case.draw_ids(STEPS))[-1])
    found = trained(case, "exact")
    np.testing.assert_allclose(found[last], reference(case)[last], atol=2e-5)


@pytest.mark.parametrize("case", [c for c in CASES if ARMS["exact"].unsupported(c)], ids=str)
def test_row_sparse_is_dense_where_a_gradient_of_0_changes_nothing(case):
    np.testing.assert_allclose(trained(case, "sparse"), reference(case), atol=2e-5)


def test_an_arm_says_why_it_has_nothing_to_measure():
    assert "no adagrad" in ARMS["stock"].unsupported(Case(10, formula="adagrad"))
    assert "already exact" in ARMS["exact"].unsupported(Case(10))
