# SPDX-License-Identifier: Apache-2.0
"""Results larger than a product that they read are written whole."""

import numpy as np
import pytest
import tvm
from tvm import relax
from tvm.relax import op

import sparsetrain as st
from sparsetrain.compiler.schedule import pipeline
from sparsetrain.runtime.compiling import build_relax
from sparsetrain.runtime.targets import resolve_target

ROWS, IN, OUT = 9, 40, 48


def function(body, **shapes):
    builder = relax.BlockBuilder()
    params = [relax.Var(n, relax.TensorType(shape, "float32")) for n, shape in shapes.items()]
    with builder.function("main", params):
        with builder.dataflow():
            out = builder.emit_output(body(builder.emit, *params))
        builder.emit_func_output(out)
    return builder.get()


# What a product's result is padded to, after its last element on each axis.
PADDED = {"columns": ((ROWS, IN), (0, 16)), "one row of each": ((ROWS, 1, IN), (0, 3, 0))}


@pytest.mark.parametrize("name", PADDED)
def test_padding_behind_a_product(name):
    shape, after = PADDED[name]

    def body(emit, x, w):
        widths = [width for more in after for width in (0, more)]
        return op.nn.pad(emit(op.matmul(x, w)), widths)

    target, random = resolve_target("cpu"), np.random.default_rng(0)
    module = function(body, x=(tvm.tirx.Var("B", "int64"), *shape[1:]), w=(IN, OUT))
    x, w = (random.random(s).astype("f4") for s in (shape, (IN, OUT)))
    machine = build_relax(module, target, pipeline(target))
    found = machine["main"](*map(st.runtime.as_tensor, (x, w)))
    expected = np.pad(x @ w, [(0, more) for more in after])
    np.testing.assert_allclose(found.numpy(), expected, rtol=1e-5)


def test_the_gradient_of_the_first_token_behind_a_product():
    def body(emit, x, w):
        first = emit(op.strided_slice(emit(op.exp(x)), [1], [0], [1]))
        return op.sum(emit(op.sin(emit(op.matmul(first, w)))))

    random = np.random.default_rng(0)
    x, w = (random.random(s).astype("f4") for s in ((ROWS, 7, IN), (IN, OUT)))
    program = st.value_and_grad(function(body, x=x.shape, w=w.shape), "main", ["x"])
    _, found = program({"x": x}, {"w": w})
    first = np.exp(x[:, 0].astype("f8"))
    expected = np.zeros(x.shape)
    expected[:, 0] = (np.cos(first @ w) @ w.T) * first
    np.testing.assert_allclose(found["x"].numpy(), expected, atol=2e-4)


@pytest.mark.parametrize("axis", [0, 1])
def test_the_gradient_of_what_a_product_reads_of_a_longer_array(axis):
    shape, cut = ((64, IN), (OUT, IN)) if axis == 0 else ((ROWS, 64), (ROWS, OUT))

    def body(emit, x, w):
        taken = emit(op.strided_slice(emit(op.exp(x)), [axis], [0], [OUT]))
        return op.sum(emit(op.sin(emit(op.matmul(taken, w)))))

    random = np.random.default_rng(0)
    x, w = (random.random(s).astype("f4") for s in (shape, (cut[1], 5)))
    program = st.value_and_grad(function(body, x=shape, w=w.shape), "main", ["x"])
    _, found = program({"x": x}, {"w": w})
    wide = np.exp(x.astype("f8"))
    taken = wide[: cut[0], : cut[1]]
    expected = np.zeros(shape)
    expected[: cut[0], : cut[1]] = np.cos(taken @ w) @ w.T
    np.testing.assert_allclose(found["x"].numpy(), expected * wide, atol=2e-4)
