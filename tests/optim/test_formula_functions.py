# SPDX-License-Identifier: Apache-2.0
"""Functions of formulas against float64."""

import numpy as np
import pytest

from sparsetrain.optim import Formula, Optimizer, abs, exp, sign, where
from sparsetrain.runtime import as_numpy, as_tensor
from sparsetrain.sparse_tensor import RowSparse

ROWS, WIDTH = 40, 5


def _function(compute):
    """A formula whose new weight is a function of weight and gradient."""
    return Optimizer(Formula("function", lambda w, g, slots, h: (compute(w, g), ())), {})


FUNCTIONS = {
    "sign": lambda w, g: sign(g),
    "abs": lambda w, g: abs(w) - abs(g),
    "exp": lambda w, g: exp(w * g),
    "where": lambda w, g: where(g >= w, g, 0.5),
    "where of two numbers": lambda w, g: w + where(abs(g) < 1, 2, -1.5),
}


@pytest.mark.parametrize("sparse", [False, True], ids=["dense", "rows"])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_function_of_symbols_is_that_of_arrays(name, sparse):
    rng = np.random.default_rng(0)
    weight, gradient = rng.standard_normal((2, ROWS, WIDTH)).astype("f4")
    gradient[3, :2] = 0.0, -0.0
    expected = FUNCTIONS[name](weight.astype("f8"), gradient.astype("f8"))
    optimizer, params = _function(FUNCTIONS[name]), {"w": as_tensor(weight)}
    given = RowSparse.from_numpy(np.arange(ROWS), gradient, ROWS) if sparse else as_tensor(gradient)
    optimizer.apply_(params, {"w": given}, optimizer.init(params))
    np.testing.assert_allclose(as_numpy(params["w"]), expected, rtol=1e-6, atol=1e-6)
