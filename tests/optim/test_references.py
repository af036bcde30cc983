# SPDX-License-Identifier: Apache-2.0
"""The package's optimizers follow their papers: each has a reference in NumPy."""

import numpy as np
import pytest

from sparsetrain import optim
from tests.helpers import slow_except
from tests.optim import references
from tests.optim.formulas import Run

LR = 0.01


def test_every_optimizer_has_a_reference():
    assert references.REFERENCES.keys() ^ optim.OPTIMIZERS.keys() == set()


@pytest.mark.parametrize("case", slow_except(references.ONE_OF_EACH, references.CASES))
def test_a_hundred_steps_follow_the_paper(case):
    rng = np.random.default_rng(1)
    weight = rng.standard_normal((40, 3)).astype("f4")
    gradients = 0.1 * rng.standard_normal((100, 40, 3))
    run = Run(references.made(case, LR), weight)
    for gradient in gradients:
        run.apply(gradient.astype("f4"))
    found, expected = run.arrays()["w"], references.expected(case, LR, weight, gradients)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)
    np.testing.assert_array_equal(found == 0, expected == 0)
