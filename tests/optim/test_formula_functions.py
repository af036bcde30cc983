# SPDX-License-Identifier: Apache-2.0
"""Functions of formulas, and rules of papers written with them, against float64."""

import numpy as np
import pytest

from sparsetrain.optim import Formula, Optimizer, Slot, abs, exp, sign, sqrt, where
from sparsetrain.runtime import as_numpy, as_tensor
from sparsetrain.sparse_tensor import RowSparse
from tests.optim.formulas import Run

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


# Lion, https://arxiv.org/abs/2302.06675, algorithm 2. Decay is `weight_decay`, decoupled.
def lion_step(w, g, slots, h):
    (mean,) = slots
    update = sign(h.beta1 * mean + (1 - h.beta1) * g)
    return w - h.lr * update, (h.beta2 * mean + (1 - h.beta2) * g,)


def lion(**options):
    formula = Formula("lion", lion_step, (Slot("mean"),), slot_decay=("beta2",))
    numbers = {"lr": 0.02, "beta1": 0.9, "beta2": 0.99}
    return Optimizer(formula, numbers, weight_decay=0.1, decoupled=True, **options)


# Adam with one second moment for each row.
def rowwise_adam_step(w, g, slots, h):
    mean, square = slots
    mean = h.beta1 * mean + (1 - h.beta1) * g
    square = h.beta2 * square + (1 - h.beta2) * h.row_mean
    return w - h.rate * mean / (sqrt(square) * h.spread + h.eps), (mean, square)


def corrections(hyper, step):
    rate = hyper["lr"] / (1 - hyper["beta1"] ** step)
    return {"rate": rate, "spread": (1 - hyper["beta2"] ** step) ** -0.5}


def rowwise_adam(**options):
    slots = (Slot("mean"), Slot("square", "row"))
    formula = Formula(
        "rowwise_adam",
        rowwise_adam_step,
        slots,
        row_mean=lambda g: g * g,
        per_step=corrections,
        noop_on_zero_grad="untouched",
    )
    numbers = {"lr": 0.01, "beta1": 0.9, "beta2": 0.999, "eps": 1e-8}
    return Optimizer(formula, numbers, **options)


def lion_of_the_paper(weight, gradients):
    mean = np.zeros_like(weight)
    for g in gradients:
        c = 0.9 * mean + 0.1 * g
        weight = weight - 0.02 * (np.sign(c) + 0.1 * weight)
        mean = 0.99 * mean + 0.01 * g
    return weight


def rowwise_adam_of_the_paper(weight, gradients):
    mean, square = np.zeros_like(weight), np.zeros((len(weight), 1))
    for t, g in enumerate(gradients, 1):
        mean = 0.9 * mean + 0.1 * g
        square = 0.999 * square + 0.001 * (g * g).mean(axis=1, keepdims=True)
        unbiased = mean / (1 - 0.9**t), square / (1 - 0.999**t)
        weight = weight - 0.01 * unbiased[0] / (np.sqrt(unbiased[1]) + 1e-8)
    return weight


@pytest.mark.parametrize(
    ("make", "paper"),
    [(lion, lion_of_the_paper), (rowwise_adam, rowwise_adam_of_the_paper)],
    ids=["lion", "rowwise_adam"],
)
def test_a_rule_of_a_paper_has_its_weights_densely_and_by_rows(make, paper):
    rng = np.random.default_rng(1)
    weight = rng.standard_normal((ROWS, WIDTH)).astype("f4")
    ids = rng.integers(0, ROWS, (12, 9))
    values = rng.standard_normal((12, 9, WIDTH)).astype("f4")
    gradients = np.zeros((12, ROWS, WIDTH), "f4")
    for step in range(12):
        np.add.at(gradients[step], ids[step], values[step])
    dense, exact = Run(make(), weight), Run(make(mode="exact"), weight)
    for step in range(12):
        dense.apply(gradients[step])
        exact.optimizer.catch_up_(exact.params, {"w": ids[step]}, exact.state)
        exact.apply(RowSparse.from_numpy(ids[step], values[step], ROWS))
    exact.optimizer.flush_(exact.params, exact.state)
    found = dense.arrays()["w"]
    np.testing.assert_allclose(found, paper(weight.astype("f8"), gradients), rtol=2e-5, atol=2e-5)
    np.testing.assert_array_equal(exact.arrays()["w"], found)
