# SPDX-License-Identifier: Apache-2.0
"""Loops of one's own on CUDA: a program's parameters are placed beside it, once."""

from __future__ import annotations

import numpy as np
import pytest

import sparsetrain as st
from sparsetrain import runtime
from sparsetrain.errors import ConfigError
from sparsetrain.runtime.targets import device_of
from sparsetrain.runtime.tensors import on_gpu, to_device
from tests import small_dlrm

CLOSE = {"rtol": 1e-4, "atol": 1e-5}
OPTIMIZER = st.optim.adam(0.01)


def looped(target: str) -> dict[str, runtime.NDArray]:
    """Parameters after three steps of a loop as in docs/models.md."""
    model = small_dlrm.model()
    program = st.value_and_grad(model.export(), "loss", target=target)
    params = program.place(model.initialize(0))
    state = OPTIMIZER.init(params)
    for seed in range(3):
        loss, gradients = program(params, model.inputs(small_dlrm.batch(37, seed)))
        OPTIMIZER.apply_(params, gradients, state, loss=loss)
    return params


def test_a_loop_with_placed_parameters_gives_the_weights_of_the_cpu(cuda):
    found, expected = looped("cuda"), looped("cpu")
    for key, array in expected.items():
        assert on_gpu(found[key])
        np.testing.assert_allclose(runtime.as_numpy(found[key]), array.numpy(), **CLOSE)


@pytest.mark.parametrize("what", ["gradient", "slot 'sum'"])
def test_parameters_that_lie_elsewhere_are_named_with_the_way_out(cuda, what):
    optimizer = st.optim.adagrad(0.1)
    params = {"w": runtime.zeros((3,), "float32")}
    there = {"w": to_device(params["w"], device_of(cuda))}
    state = optimizer.init(params)
    if what == "slot 'sum'":
        params = there
    message = rf"'w' lies on .*, its {what} on .*program\.place\(params\) before optimizer\.init"
    with pytest.raises(ConfigError, match=message):
        optimizer.apply_(params, there, state)


def test_what_lies_beside_the_program_is_not_copied(target):
    program = st.Program(small_dlrm.model().export(), "logits", target=target)
    given = {"a": np.arange(3.0, dtype="f4"), "b": st.runtime.zeros((2,), "float32")}
    placed = program.place(given)
    assert list(placed) == ["a", "b"]
    assert all(on_gpu(tensor) == (target == "cuda") for tensor in placed.values())
    np.testing.assert_array_equal(runtime.as_numpy(placed["a"]), given["a"])
    again = program.place(placed)
    assert all(again[name] is placed[name] for name in given)
    assert isinstance(given["a"], np.ndarray)
