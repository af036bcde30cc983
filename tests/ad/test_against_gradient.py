# SPDX-License-Identifier: Apache-2.0
"""Our reverse pass against TVM's `relax.transform.Gradient`: a table of small models.

TVM's pass is the oracle because it shares no code with the walker. It knows dense cotangents
and one-dimensional ids only, so our row-sparse gradients are made dense before they are compared.
"""

import numpy as np
import pytest
import tvm
from tvm import relax
from tvm.script import ir as I
from tvm.script import relax as R

import sparsetrain as st
from sparsetrain import runtime
from sparsetrain.runtime.compiling import build_relax
from tests.helpers import UNOPTIMIZED, slow_except

ROWS = 9

# TVMScript is parsed, not run, so each model is a class; they share nothing on purpose.


@I.ir_module
class Mlp:
    """Two layers over a symbolic batch."""

    @R.function
    def loss(
        x: R.Tensor(("B", 5), "float32"),
        w0: R.Tensor((4, 5), "float32"),
        b0: R.Tensor((4,), "float32"),
        w1: R.Tensor((1, 4), "float32"),
    ) -> R.Tensor((), "float32"):
        with R.dataflow():
            t0 = R.permute_dims(w0)
            h = R.nn.relu(R.add(R.matmul(x, t0), b0))
            y = R.sigmoid(R.matmul(h, R.permute_dims(w1)))
            s = R.sum(R.multiply(y, y))
            R.output(s)
        return s


@I.ir_module
class TableTwice:
    """One table looked up by two sets of ids, then used in a product."""

    @R.function
    def loss(
        ids: R.Tensor(("B",), "int32"),
        more: R.Tensor(("B",), "int32"),
        table: R.Tensor((9, 4), "float32"),
        w: R.Tensor((4, 3), "float32"),
    ) -> R.Tensor((), "float32"):
        with R.dataflow():
            a = R.take(table, ids, axis=0)
            b = R.take(table, more, axis=0)
            s = R.sum(R.exp(R.matmul(R.multiply(a, b), w)))
            R.output(s)
        return s


@I.ir_module
class Shared:
    """Dense reuse: a variable used three times, an alias and a branch without gradient."""

    @R.function
    def loss(x: R.Tensor(("B", 4), "float32"), w: R.Tensor((4, 4), "float32")) -> R.Tensor(
        (), "float32"
    ):
        with R.dataflow():
            h = R.matmul(x, w)
            same = h
            unused = R.exp(h)  # noqa: F841
            z = R.add(R.multiply(same, h), R.tanh(same))
            s = R.sum(z)
            R.output(s)
        return s


@I.ir_module
class Tuples:
    """Split, a tuple, its fields in another order, and a concatenation."""

    @R.function
    def loss(x: R.Tensor((6, 4), "float32"), w: R.Tensor((4, 4), "float32")) -> R.Tensor(
        (), "float32"
    ):
        with R.dataflow():
            parts = R.split(R.matmul(x, w), 2, axis=1)
            left = parts[0]
            right = parts[1]
            pair = (right, left)
            first = pair[0]
            joined = R.concat((first, R.multiply(left, left)), axis=1)
            s = R.sum(R.multiply(joined, x))
            R.output(s)
        return s


@I.ir_module
class Dlrm:
    """The shape of the real thing: bottom layer, two tables, a product, softmax cross-entropy."""

    @R.function
    def loss(
        x: R.Tensor(("B", 5), "float32"),
        ids: R.Tensor(("B",), "int32"),
        more: R.Tensor(("B",), "int32"),
        labels: R.Tensor(("B", 3), "float32"),
        bottom: R.Tensor((5, 4), "float32"),
        table: R.Tensor((9, 4), "float32"),
        other: R.Tensor((9, 4), "float32"),
        top: R.Tensor((8, 3), "float32"),
    ) -> R.Tensor((), "float32"):
        with R.dataflow():
            h = R.nn.relu(R.matmul(x, bottom))
            a = R.multiply(h, R.take(table, ids, axis=0))
            b = R.subtract(h, R.take(other, more, axis=0))
            z = R.matmul(R.concat((a, b), axis=1), top)
            s = R.sum(R.negative(R.multiply(labels, R.nn.log_softmax(z))))
            R.output(s)
        return s


MODELS = {
    "mlp": Mlp,
    "table twice": TableTwice,
    "shared": Shared,
    "tuples": Tuples,
    "dlrm": Dlrm,
}


def _arguments(function, batch=6, seed=0):
    rng = np.random.default_rng(seed)
    arrays = {}
    for param in function.params:
        shape = [int(n) if isinstance(n, tvm.tirx.IntImm) else batch for n in param.ty.shape]
        integer = "int" in str(param.ty.dtype)
        drawn = rng.integers(0, ROWS, shape) if integer else rng.standard_normal(shape)
        arrays[param.name] = drawn.astype(str(param.ty.dtype))
    return arrays


def _by_tvm(module, wanted):
    """What gives TVM's gradients of arrays."""
    variables = [p for p in module["loss"].params if p.name in wanted]
    adjoint = relax.transform.Gradient("loss", require_grads=variables)(module)
    machine = build_relax(adjoint, UNOPTIMIZED)

    def gradients(arrays):
        outputs = machine["loss_adjoint"](*(runtime.as_tensor(a) for a in arrays.values()))
        return dict(zip(wanted, (g.numpy() for g in outputs[1]), strict=True))

    return gradients


@pytest.mark.parametrize("name", slow_except(["table twice", "shared", "tuples"], MODELS))
def test_gradients_equal_those_of_tvm(name):
    module = MODELS[name]
    arrays = _arguments(module["loss"])
    wanted = [n for n, a in arrays.items() if a.dtype.kind == "f" and n not in ("x", "labels")]
    expected = _by_tvm(module, wanted)(arrays)
    program = st.value_and_grad(module, "loss", wanted)
    _, found = program({}, arrays)
    for param in wanted:
        gradient = found[param]
        dense = gradient.to_dense() if isinstance(gradient, st.RowSparse) else gradient
        np.testing.assert_allclose(
            dense.numpy(), expected[param], rtol=2e-5, atol=2e-6, err_msg=param
        )


def test_one_program_serves_every_batch_size():
    program = st.value_and_grad(Dlrm, "loss", ["table", "top"])
    by_tvm = _by_tvm(Dlrm, ["table", "top"])
    for batch in (1, 2, 7, 64):
        arrays = _arguments(Dlrm["loss"], batch)
        _, found = program({}, arrays)
        expected = by_tvm(arrays)
        np.testing.assert_allclose(
            found["table"].to_dense().numpy(), expected["table"], rtol=2e-5, atol=2e-6
        )
        np.testing.assert_allclose(found["top"].numpy(), expected["top"], rtol=2e-5, atol=2e-6)
