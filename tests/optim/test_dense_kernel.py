# SPDX-License-Identifier: Apache-2.0
"""Dense parameters updated by one launch have the bits of launches of their own."""

from itertools import product

import numpy as np
import pytest

from sparsetrain import optim, runtime
from sparsetrain.optim.update.dense_kernel import MOST
from tests.helpers import slow_except
from tests.optim.formulas import OPTIMIZERS
from tests.small_dlrm import assert_same_state

SHAPES = {
    "weight": (33, 70),
    "bias": (33,),
    "one": (1, 1),
    "cube": (3, 5, 7),
    "long": (3001,),
}


def draw(shapes, dtype, seed=0):
    rng = np.random.default_rng(seed)
    return {name: rng.standard_normal(shape).astype(dtype) for name, shape in shapes.items()}


def trained(optimizer, arrays, sets, steps=3) -> dict[str, np.ndarray]:
    """Weights and slots after some steps, each in as many calls as there are sets of names."""
    params = {name: runtime.as_tensor(array) for name, array in arrays.items()}
    states = [optimizer.init({name: params[name] for name in names}) for names in sets]
    for step in range(steps):
        gradients = draw({n: a.shape for n, a in arrays.items()}, arrays["bias"].dtype, step + 1)
        for names, state in zip(sets, states, strict=True):
            chosen = {name: runtime.as_tensor(gradients[name]) for name in names}
            optimizer.apply_(params, chosen, state)
    slots = {
        f"{n}:{s}": a for state in states for n, all_ in state.items() for s, a in all_.items()
    }
    return {name: runtime.as_numpy(array).copy() for name, array in (params | slots).items()}


QUICK = [("sgd", "float32"), ("mixed", "float32"), ("rowwise_adagrad", "float64")]
CASES = product(OPTIMIZERS, ("float32", "float64"))


@pytest.mark.parametrize(("name", "dtype"), slow_except(QUICK, CASES))
def test_all_at_once_or_one_by_one_makes_no_difference(name, dtype):
    arrays = draw(SHAPES, dtype)
    together = trained(OPTIMIZERS[name], arrays, [list(SHAPES)])
    assert_same_state(together, trained(OPTIMIZERS[name], arrays, [[n] for n in SHAPES]))


def test_more_parameters_than_one_kernel_takes():
    names = {f"p{n}": (n + 1,) for n in range(MOST + 3)} | {"bias": (2,)}
    arrays = draw(names, "float32")
    found = trained(OPTIMIZERS["sgd"], arrays, [list(names)], steps=1)
    assert all((found[name] != arrays[name]).all() for name in names)


def test_groups_with_numbers_of_their_own_keep_them():
    arrays = draw(SHAPES, "float32")
    optimizer = optim.sgd(
        1.0, groups=[optim.ParamGroup("bias", lr=0.0), optim.ParamGroup("long", scale=0.5)]
    )
    found = trained(optimizer, arrays, [list(SHAPES)], steps=1)
    gradients = draw(SHAPES, "float32", 1)
    for name, rate in {"weight": 1.0, "bias": 0.0, "long": 0.5, "cube": 1.0}.items():
        expected = arrays[name] - np.float32(rate) * gradients[name]
        np.testing.assert_allclose(found[name], expected, rtol=1e-6, atol=1e-6)


def test_values_are_clipped_in_every_parameter():
    arrays = draw(SHAPES, "float32")
    found = trained(optim.sgd(1.0, clip_value=0.5), arrays, [list(SHAPES)], steps=1)
    gradients = draw(SHAPES, "float32", 1)
    for name, array in arrays.items():
        expected = array - np.clip(gradients[name], -0.5, 0.5)
        np.testing.assert_allclose(found[name], expected, rtol=1e-6, atol=1e-6)
