# SPDX-License-Identifier: Apache-2.0
"""Steps that differ from the one before have the bits of steps that were taken alone."""

import numpy as np
import pytest

from sparsetrain import optim
from sparsetrain.errors import ConfigError, DataError
from sparsetrain.runtime import as_numpy, as_tensor
from sparsetrain.sparse_tensor import RowSparse
from tests.helpers import assert_same_bits

ROWS, WIDTH = 97, 3


class Trained:
    """A table under Adagrad."""

    def __init__(self, update: str = "sparse") -> None:
        self.params = {"t": as_tensor(np.ones((ROWS, WIDTH), "f4"))}
        self.optimizer = optim.adagrad(0.1, update=update)
        self.state = self.optimizer.init(self.params, {"t": {"t": slice(0, ROWS)}})

    def apply_(self, gradient: RowSparse) -> None:
        self.optimizer.apply_(self.params, {"t": gradient}, self.state)

    def weights(self) -> np.ndarray:
        return as_numpy(self.params["t"])


def gradient(seed: int, count: int, dtype: str = "int32") -> RowSparse:
    rng = np.random.default_rng(seed)
    ids = as_tensor(rng.integers(0, ROWS, count), dtype)
    return RowSparse(ids, as_tensor(rng.standard_normal((count, WIDTH), "f4")), ROWS)


def afresh(gradients: list[RowSparse]) -> np.ndarray:
    """Weights after these steps if none knows of the last one."""
    table = Trained()
    for each in gradients:
        table.state.update_steps.clear()
        table.apply_(each)
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
        table.apply_(each)
    assert_same_bits(table.weights(), afresh(gradients))


def test_a_step_that_is_refused_leaves_the_next_one_as_it_was():
    table, good = Trained(), gradient(0, 40)
    table.apply_(good)
    bad = RowSparse(as_tensor(np.full(40, ROWS + 1, "i4")), good.values, ROWS)
    with pytest.raises(DataError, match="40 row indices lie outside the 97 rows of 't'"):
        table.apply_(bad)
    table.apply_(good)
    assert_same_bits(table.weights(), afresh([good, good]))


def test_coalesced_and_other_gradients_may_alternate():
    gradients = [gradient(0, 40), gradient(1, 40).coalesce()]
    again = gradient(2, gradients[1].nse)
    table = Trained()
    for each in (again, *gradients, again):
        table.apply_(each)
    assert_same_bits(table.weights(), afresh([again, *gradients, again]))


def test_a_gradient_of_another_dtype_is_named_after_others_too():
    table, own = Trained(), gradient(0, 40)
    table.apply_(own)
    before = table.weights().copy()
    wide = RowSparse(own.indices, as_tensor(as_numpy(own.values), "float64"), ROWS)
    with pytest.raises(ConfigError, match="gradient of 't' is .*float64"):
        table.apply_(wide)
    assert_same_bits(table.weights(), before)
