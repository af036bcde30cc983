# SPDX-License-Identifier: Apache-2.0
"""A step goes the way of the last one: same bits, and no plan is lost that is still needed."""

import numpy as np
import pytest

from sparsetrain import optim
from sparsetrain.errors import ConfigError, DataError
from sparsetrain.optim.step import Step
from sparsetrain.runtime import as_numpy, as_tensor
from sparsetrain.sparse_tensor import RowSparse
from tests.helpers import assert_same_bits

ROWS, WIDTH = 97, 3
CHOOSING = "sparsetrain.optim.step.paths_of"


class Trained:
    """A table under Adagrad."""

    def __init__(self, update: str = "sparse") -> None:
        self.params = {"t": as_tensor(np.ones((ROWS, WIDTH), "f4"))}
        self.optimizer = optim.adagrad(0.1, update=update)
        self.state = self.optimizer.init(self.params, {"t": {"t": slice(0, ROWS)}})

    def prepare(self, gradient: RowSparse) -> Step:
        return self.optimizer.prepare(self.params, {"t": gradient}, self.state)

    def weights(self) -> np.ndarray:
        return as_numpy(self.params["t"])


def gradient(seed: int, count: int, dtype: str = "int32") -> RowSparse:
    rng = np.random.default_rng(seed)
    ids = as_tensor(rng.integers(0, ROWS, count), dtype)
    return RowSparse(ids, as_tensor(rng.standard_normal((count, WIDTH), "f4")), ROWS)


def afresh(gradients: list[RowSparse]) -> np.ndarray:
    """The sparse path's weights after these steps if none knows of the last one."""
    table = Trained()
    for each in gradients:
        table.state.bound = None
        table.prepare(each).finish_()
    return table.weights()


@pytest.mark.parametrize(
    "kinds",
    [
        [(40, "int32")] * 3,
        [(40, "int32"), (41, "int32"), (1, "int32"), (40, "int32")],
        [(40, "int32"), (40, "int64"), (40, "int32")],
    ],
    ids=["alike", "other counts", "other dtypes"],
)
@pytest.mark.parametrize("update", ["sparse", "dense"])
def test_steps_after_others_give_the_same_bits(update, kinds):
    gradients = [gradient(seed, *kind) for seed, kind in enumerate(kinds)]
    table = Trained(update)
    for each in gradients:
        table.prepare(each).finish_()
    assert_same_bits(table.weights(), afresh(gradients))


@pytest.mark.parametrize("update", ["sparse", "dense"])
def test_a_step_like_the_last_one_chooses_nothing(update, monkeypatch):
    table = Trained(update)
    table.prepare(gradient(0, 40)).finish_()
    monkeypatch.setattr(CHOOSING, None)
    table.prepare(gradient(1, 40)).finish_()
    with pytest.raises(TypeError, match="not callable"):
        table.prepare(gradient(2, 41))


@pytest.mark.parametrize("update", ["sparse", "dense"])
def test_two_steps_in_preparation_have_plans_of_their_own(update):
    gradients = [gradient(seed, 40) for seed in range(3)]
    table = Trained(update)
    table.prepare(gradients[0]).finish_()
    ready = [table.prepare(each) for each in gradients[1:]]
    for step in ready:
        step.finish_()
    assert_same_bits(table.weights(), afresh(gradients))


def test_a_step_that_is_refused_leaves_the_next_one_a_sort():
    table, good = Trained(), gradient(0, 40)
    table.prepare(good).finish_()
    bad = RowSparse(as_tensor(np.full(40, ROWS + 1, "i4")), good.values, ROWS)
    with pytest.raises(DataError, match="40 of 40"):
        table.prepare(bad)
    table.prepare(good).finish_()
    assert_same_bits(table.weights(), afresh([good, good]))


def test_what_sorts_many_ids_is_not_kept(monkeypatch):
    monkeypatch.setattr("sparsetrain.sparse_tensor.coalesce._shared_from", lambda: 30)
    table = Trained()
    table.prepare(gradient(0, 40)).finish_()
    monkeypatch.setattr(CHOOSING, None)
    with pytest.raises(TypeError, match="not callable"):
        table.prepare(gradient(1, 40))


def test_a_coalesced_gradient_keeps_its_own_plan():
    gradients = [gradient(0, 40), gradient(1, 40).coalesce()]
    again = gradient(2, gradients[1].nse)
    table = Trained()
    for each in (again, *gradients, again):
        table.prepare(each).finish_()
    assert_same_bits(table.weights(), afresh([again, *gradients, again]))


def test_a_table_update_names_a_gradient_of_another_dtype_after_others_too():
    step = optim.TableUpdate(optim.sgd(0.1), np.ones((ROWS, WIDTH), "f4"), "sparse")
    own = gradient(0, 40)
    step(own)
    before = as_numpy(step.weight).copy()
    wide = RowSparse(own.indices, as_tensor(as_numpy(own.values), "float64"), ROWS)
    with pytest.raises(ConfigError, match="table update: the gradient is .*float64"):
        step(wide)
    assert_same_bits(step.weight, before)
