# SPDX-License-Identifier: Apache-2.0
"""Kernels that a user writes as one tensor expression: a sum and what follows it, unnamed."""

from __future__ import annotations

import numpy as np
import pytest
from tvm import relax, tirx, topi

from tests.cuda import device
from tests.cuda.test_kernels import in_every_order, there

WIDTH = 3
# Name -> expression, the same in NumPy. One number is not all that is left of any of them.
CASES = {
    "less_its_sum": (lambda x: topi.subtract(x, topi.sum(x)), lambda x: x - x.sum()),
    "share": (
        lambda x: topi.divide(topi.exp(x), topi.sum(topi.exp(x))),
        lambda x: np.exp(x) / np.exp(x).sum(),
    ),
    "less_its_row": (
        lambda x: topi.subtract(x, topi.sum(x, 1, keepdims=True)),
        lambda x: x - x.sum(1, keepdims=True),
    ),
}


def add_own(builder: relax.BlockBuilder, name: str) -> None:
    """A function of one kernel, which is called after a lambda."""
    x = relax.Var("x", relax.TensorType((tirx.Var("B", "int64"), WIDTH), "float32"))
    with builder.function(name, [x]):
        with builder.dataflow():
            out = builder.emit_output(builder.emit_te(CASES[name][0], x))
        builder.emit_func_output(out)


@pytest.fixture(scope="module")
def machine():
    """All functions in one program."""
    with device.one_program(CASES, add_own) as built:
        yield built


@pytest.mark.parametrize("batch", [0, 1, 1025])
@pytest.mark.parametrize("name", CASES)
def test_any_number_of_places_may_follow_a_sum(cuda, machine, name, batch):
    x = np.random.default_rng(batch).standard_normal((batch, WIDTH)).astype("f4")
    argument = there(x, "cuda")
    found = in_every_order("cuda", lambda: machine[name](argument).numpy())
    np.testing.assert_allclose(found, CASES[name][1](x.astype("f8")), rtol=1e-5, atol=1e-4)
