# SPDX-License-Identifier: Apache-2.0
"""Closed mode: many missed steps are one product, within its bound of a replay in float64."""

import numpy as np
import pytest

from sparsetrain import optim
from sparsetrain.errors import ConfigError
from sparsetrain.runtime import as_numpy
from tests.helpers import assert_same_bits
from tests.optim.oracle import Table, lr

LINEAR = {
    "sgd, coupled decay": lambda lr, **o: optim.sgd(lr, weight_decay=0.1, **o),
    "sgd, decoupled decay": lambda lr, **o: optim.sgd(lr, weight_decay=0.1, decoupled=True, **o),
    "momentum": optim.momentum,
    "momentum, coupled decay": lambda lr, **o: optim.momentum(lr, weight_decay=0.1, **o),
    "momentum, decoupled decay": lambda lr, **o: optim.momentum(
        lr, weight_decay=0.1, decoupled=True, **o
    ),
    "nesterov, coupled decay": lambda lr, **o: optim.nesterov(lr, weight_decay=0.1, **o),
    "rmsprop, decoupled decay": lambda lr, **o: optim.rmsprop(
        lr, weight_decay=0.1, decoupled=True, **o
    ),
    "adagrad, decoupled decay": lambda lr, **o: optim.adagrad(
        lr, weight_decay=0.1, decoupled=True, **o
    ),
}
STEPS, ROWS, WIDTH = 300, 40, 4


@pytest.mark.parametrize("name", LINEAR)
def test_rows_are_within_one_rounding_of_a_replay_in_float64(name):
    table = Table(LINEAR[name](lr(STEPS + 5), mode="closed"), ROWS, WIDTH)
    table.train(5, 200)
    table.arrays()
    rule = table.state.tables.table("t").ranges[0].rule
    start = values_of(table)
    for _ in range(STEPS):
        table.step(np.array([0]), np.ones((1, WIDTH)))
    wanted, sizes = start, np.abs(start)
    for step in range(6, STEPS + 6):
        numbers = rule.numbers(step)
        product = rule.spec.transition(numbers)
        wanted = np.stack(rule.spec.stepped(wanted, numbers))
        sizes = np.einsum("ij,jvd->ivd", np.abs(product), sizes)
    table.arrays()
    error = np.abs(values_of(table) - wanted)[:, 1:]  # row 0 took gradients
    order = rule.spec.order
    bound = 2**-24 * np.abs(wanted) + order * (STEPS + 1) * 2**-52 * sizes
    assert (error <= bound[:, 1:] + 1e-45).all()
    assert error.max() > 0


def values_of(table: Table) -> np.ndarray:
    """Weights and slots (K, V, D) float64."""
    names = [slot.name for slot in table.optimizer.formula.slots]
    tensors = [table.params["t"], *(table.state["t"][name] for name in names)]
    return np.stack([as_numpy(tensor).astype(np.float64) for tensor in tensors])


@pytest.mark.parametrize("name", ["momentum, coupled decay"])
def test_few_missed_steps_have_the_bits_of_exact_mode(name):
    exact, closed = (
        Table(LINEAR[name](0.01, mode=mode, update="sparse"), ROWS, WIDTH)
        for mode in ("exact", "closed")
    )
    for table in (exact, closed):
        for step in range(24):
            table.step(np.arange(step % 8, ROWS, 8), np.ones((5, WIDTH)))
    for key, array in exact.arrays().items():
        assert_same_bits(closed.arrays()[key], array)


NOT = {
    "adam": lambda: optim.adam(0.01, mode="closed"),
    "adam with coupled weight_decay": lambda: optim.adam(0.01, weight_decay=0.1, mode="closed"),
    "adamw": lambda: optim.adamw(0.01, mode="closed"),
    "rmsprop with coupled weight_decay": lambda: optim.rmsprop(
        0.01, weight_decay=0.1, mode="closed"
    ),
    "adagrad with coupled weight_decay": lambda: optim.adagrad(
        0.01, weight_decay=0.1, mode="closed"
    ),
    "ftrl": lambda: optim.ftrl(0.01, mode="closed"),
}


@pytest.mark.parametrize("name", NOT)
def test_formulas_without_a_closed_form_are_refused_by_name(name):
    with pytest.raises(ConfigError, match=f"^{name}: mode 'closed' needs a step that is linear"):
        NOT[name]()


def test_the_mode_says_its_bound():
    table = Table(optim.momentum(0.01, weight_decay=0.1, mode="closed"), 100_000, 4)
    (said,) = table.optimizer.describe(table.state)
    assert "more than 8 missed steps are one product, within a float32 rounding" in said
