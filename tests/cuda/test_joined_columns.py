# SPDX-License-Identifier: Apache-2.0
"""Gradients through products whose columns are joined to others, as features of layers often are.

The cotangent of a joined part is a product of which only those columns are kept.
"""

from __future__ import annotations

import numpy as np
import pytest
import tvm
from tvm import relax, tirx

import sparsetrain as st
from sparsetrain import runtime
from sparsetrain.compiler.precision import BFLOAT16

HIDDEN, MORE, OUT = 36, 8, 40
WAYS = {"joined first": "ho", "joined last": "oh", "padded": "h"}


def module(way: str) -> tvm.IRModule:
    """``mean((join(x @ a, others) @ b) ** 2)``."""
    builder, batch = relax.BlockBuilder(), tirx.Var("B", "int64")
    shapes = {"x": (batch, 20), "o": (batch, MORE), "a": (20, HIDDEN), "b": (HIDDEN + MORE, OUT)}
    arguments = [relax.Var(n, relax.TensorType(shape, "float32")) for n, shape in shapes.items()]
    x, others, a, b = arguments
    with builder.function("loss", arguments, attrs={"num_input": 2}):
        with builder.dataflow():
            parts = {"h": builder.emit(relax.op.matmul(x, a)), "o": others}
            if WAYS[way] == "h":
                joined = relax.op.nn.pad(parts["h"], (0, 0, 0, MORE))
            else:
                joined = relax.op.concat([parts[letter] for letter in WAYS[way]], 1)
            out = builder.emit(relax.op.matmul(builder.emit(joined), b))
            loss = builder.emit_output(relax.op.mean(builder.emit(relax.op.multiply(out, out))))
        builder.emit_func_output(loss)
    return builder.get()


QUICK = [("joined last", None)]
FURTHER = [(way, half) for way in WAYS for half in (None, BFLOAT16) if (way, half) not in QUICK]


@pytest.mark.parametrize(
    ("way", "precision"),
    [*QUICK, *(pytest.param(*case, marks=pytest.mark.slow) for case in FURTHER)],
)
def test_gradients_are_those_of_the_cpu(cuda, way, precision):
    rng = np.random.default_rng(len(way))
    shapes = {"a": (20, HIDDEN), "b": (HIDDEN + MORE, OUT), "x": (9, 20), "o": (9, MORE)}
    arrays = {name: rng.standard_normal(shape).astype("f4") for name, shape in shapes.items()}
    params = {name: arrays.pop(name) for name in "ab"}
    found, expected = (
        st.value_and_grad(module(way), "loss", target=target, precision=precision)(params, arrays)
        for target in (cuda, "cpu")
    )
    close = {"rtol": 1e-4, "atol": 1e-4} if precision is None else {"rtol": 0.02, "atol": 0.05}
    for name, gradient in expected[1].items():
        there = runtime.as_numpy(found[1][name])
        np.testing.assert_allclose(there, runtime.as_numpy(gradient), **close, err_msg=name)
