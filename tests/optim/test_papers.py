# SPDX-License-Identifier: Apache-2.0
"""The optimizers of `examples/optimizers.py` follow their papers, densely and by rows."""

import runpy
from pathlib import Path

import numpy as np
import pytest

from sparsetrain.errors import ConfigError
from sparsetrain.sparse_tensor import RowSparse
from tests.helpers import slow_except
from tests.optim.formulas import Run

RULES = runpy.run_path(str(Path(__file__).parents[2] / "examples" / "optimizers.py"))
ROWS, WIDTH, STEPS, IDS = 40, 5, 12, 9


def norm(x):
    return np.sqrt((x * x).sum(axis=1, keepdims=True))


def lion(weight, gradients, counts):
    mean = np.zeros_like(weight)
    for g in gradients:
        c = 0.9 * mean + 0.1 * g
        weight = weight - 0.02 * (np.sign(c) + 0.1 * weight)
        mean = 0.99 * mean + 0.01 * g
    return weight


def moments(gradients, square_of):
    """Unbiased averages of each step."""
    mean = square = 0.0
    for t, g in enumerate(gradients, 1):
        mean, square = 0.9 * mean + 0.1 * g, 0.999 * square + 0.001 * square_of(g)
        yield mean / (1 - 0.9**t), square / (1 - 0.999**t)


def rowwise_adam(weight, gradients, counts):
    for m, v in moments(gradients, lambda g: (g * g).mean(axis=1, keepdims=True)):
        weight = weight - 0.01 * m / (np.sqrt(v) + 1e-8)
    return weight


def lamb(weight, gradients, counts):
    for m, v in moments(gradients, np.square):
        update = m / (np.sqrt(v) + 1e-6) + 0.01 * weight
        ratio = np.where(norm(weight) > 0, norm(weight) / norm(update), 1.0)
        weight = weight - 0.01 * ratio * update
    return weight


def cowclip(weight, gradients, counts):
    mean = square = 0.0
    for t, (g, count) in enumerate(zip(gradients, counts, strict=True), 1):
        clip = count[:, None] * np.maximum(0.4 * norm(weight), 0.3)
        g = np.minimum(1, clip / np.maximum(norm(g), 1e-30)) * g
        mean, square = 0.9 * mean + 0.1 * g, 0.999 * square + 0.001 * g * g
        weight = weight - 0.01 * mean / (1 - 0.9**t) / (np.sqrt(square / (1 - 0.999**t)) + 1e-8)
    return weight


# The example's name -> what it is called with, and the paper.
CASES = {
    "lion": (dict(lr=0.02, weight_decay=0.1), lion),
    "rowwise_adam": (dict(lr=0.01), rowwise_adam),
    "lamb": (dict(lr=0.01), lamb),
    "cowclip": (dict(lr=0.01, ratio=0.4, bound=0.3), cowclip),
}


@pytest.mark.parametrize("name", slow_except(["cowclip", "lamb"], CASES))
def test_a_rule_of_a_paper_has_its_weights_to_the_bits_by_rows_and_densely(name):
    numbers, paper = CASES[name]
    rng = np.random.default_rng(1)
    weight = rng.standard_normal((ROWS, WIDTH)).astype("f4")
    weight[3] = 0.0
    ids = rng.integers(0, ROWS, (STEPS, IDS))
    ids[:, 1] = ids[:, 0]
    values = rng.standard_normal((STEPS, IDS, WIDTH)).astype("f4")
    gradients, counts = np.zeros((STEPS, ROWS, WIDTH), "f4"), np.zeros((STEPS, ROWS))
    for step in range(STEPS):
        np.add.at(gradients[step], ids[step], values[step])
        np.add.at(counts[step], ids[step], 1)
    runs = {
        update: Run(RULES[name](**numbers, mode="exact", update=update), weight)
        for update in ("sparse", "dense")
    }
    for run in runs.values():
        for step in range(STEPS):
            run.optimizer.catch_up_(run.params, {"w": ids[step]}, run.state)
            run.apply(RowSparse.from_numpy(ids[step], values[step], ROWS))
        run.optimizer.flush_(run.params, run.state)
    found = runs["sparse"].arrays()["w"]
    expected = paper(weight.astype("f8"), gradients.astype("f8"), counts)
    np.testing.assert_allclose(found, expected, rtol=2e-5, atol=2e-5)
    np.testing.assert_array_equal(runs["dense"].arrays()["w"], found)


def test_counts_of_ids_are_not_there_for_dense_gradients_nor_with_a_global_norm():
    weight = np.ones((2, 3), "f4")
    free = Run(RULES["cowclip"](0.1, ratio=0.0, bound=0.0), weight).apply(np.ones((2, 3), "f4"))
    assert (free.arrays()["w"] < 1).all()  # nothing was clipped
    with pytest.raises(ConfigError, match=r"cowclip: clip_norm .* h.count is lost"):
        RULES["cowclip"](0.1, clip_norm=1.0)
