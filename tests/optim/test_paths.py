# SPDX-License-Identifier: Apache-2.0
"""The dense path of row-sparse gradients: the bits of the sparse path, and who takes which."""

import numpy as np
import pytest

from sparsetrain import optim
from sparsetrain.runtime import as_numpy, as_tensor
from sparsetrain.sparse_tensor import RowSparse
from tests.helpers import assert_same_bits

NO_OP = ["sgd", "adagrad", "rowwise_adagrad"]  # formulas to which a gradient of 0 does nothing
TABLES = {"a": slice(0, 3), "b": slice(3, 203), "c": slice(203, 204), "d": slice(204, 300)}


def train(
    optimizer, tables=TABLES, steps: int = 6, width: int = 5, **draw
) -> dict[str, np.ndarray]:
    """Weights and slots after some steps on duplicates, padding and empty batches."""
    rows = max(part.stop for part in tables.values())
    weight = np.random.default_rng(1).standard_normal((rows, width)).astype("f4")
    weight[rows // 2] = -0.0
    params = {"t": as_tensor(weight)}
    state = optimizer.init(params, {"t": tables})
    for step in range(steps):
        gradient = random_gradient(np.random.default_rng(step), rows, width, **draw)
        optimizer.catch_up_(params, {"t": as_numpy(gradient.indices)[: gradient.nse]}, state)
        optimizer.apply_(params, {"t": gradient}, state)
    optimizer.flush_(params, state)
    slots = {name: slot for name, slot in state["t"].items() if name != "last"}
    return {name: as_numpy(t).copy() for name, t in {"w": params["t"], **slots}.items()}


def random_gradient(rng, rows: int, width: int, pooled: bool = False, index_dtype: str = "i4"):
    size = int(rng.choice([0, 40, 400]))
    values = rng.standard_normal((9 if pooled else size, width)) * 10 ** rng.uniform(-3, 3)
    source = rng.integers(0, 9, size) if pooled else None
    indices = (rng.zipf(1.3, size) * 7 % rows).astype(index_dtype)
    return RowSparse.from_numpy(indices, values.astype("f4"), rows, source)


def assert_same(found: dict[str, np.ndarray], expected: dict[str, np.ndarray]) -> None:
    for name, array in expected.items():
        assert_same_bits(found[name], array)


@pytest.mark.parametrize("make", [getattr(optim, name) for name in NO_OP])
@pytest.mark.parametrize("pooled", [False, True])
def test_both_paths_give_the_same_bits(make, pooled):
    found = {u: train(make(0.1, update=u), pooled=pooled) for u in ("sparse", "dense")}
    assert_same(found["dense"], found["sparse"])
