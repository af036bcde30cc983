# SPDX-License-Identifier: Apache-2.0
"""No transpose and no copy of a weight is left in the gradient of a linear layer."""

import numpy as np
import tvm
from tvm import relax
from tvm.script import ir as I
from tvm.script import relax as R

import sparsetrain as st
from sparsetrain.compiler.schedule.transposes import CancelTranspose, FoldTransposeIntoMatmul


@I.ir_module
class Linear:
    """One layer whose input needs a gradient too."""

    @R.function
    def loss(x: R.Tensor(("B", 5), "float32"), w: R.Tensor((3, 5), "float32")) -> R.Tensor(
        (), "float32"
    ):
        with R.dataflow():
            y = R.matmul(x, R.permute_dims(w))
            s = R.sum(R.multiply(y, y))
            R.output(s)
        return s


@I.ir_module
class SharedProduct:
    """A product that is used as it is and transposed: both uses keep the one product."""

    @R.function
    def main(x: R.Tensor((4, 5), "float32"), w: R.Tensor((5, 4), "float32")) -> R.Tensor(
        (4, 4), "float32"
    ):
        with R.dataflow():
            y = R.matmul(x, w)
            z = R.add(y, R.permute_dims(y))
            R.output(z)
        return z


@I.ir_module
class InBatch:
    """A layer makes items, which queries are multiplied with: scores of all pairs."""

    @R.function
    def loss(
        q: R.Tensor(("B", 5), "float32"),
        x: R.Tensor(("B", 4), "float32"),
        w: R.Tensor((5, 4), "float32"),
        b: R.Tensor((5,), "float32"),
    ) -> R.Tensor((), "float32"):
        with R.dataflow():
            items = R.add(R.matmul(x, R.permute_dims(w)), b)
            scores = R.matmul(q, R.permute_dims(items))
            s = R.sum(R.multiply(scores, scores))
            R.output(s)
        return s


def operators(module, function):
    names = []
    relax.analysis.post_order_visit(
        module[function],
        lambda e: (
            names.append(e.op.name)
            if isinstance(e, relax.Call) and isinstance(e.op, tvm.ir.Op)
            else None
        ),
    )
    return names


def test_no_transpose_is_left_in_the_gradient_of_a_linear_layer():
    module = st.ad.gradient(Linear, "loss", ["x", "w"]).module
    module = FoldTransposeIntoMatmul()(CancelTranspose()(module))
    module = relax.transform.DeadCodeElimination(["loss_adjoint"])(module)
    assert "relax.permute_dims" not in operators(module, "loss_adjoint")


def test_the_cotangent_of_items_is_one_product_however_many_read_it():
    module = st.ad.gradient(InBatch, "loss", ["q", "x", "w", "b"]).module
    module = relax.transform.DeadCodeElimination()(CancelTranspose()(module))
    assert operators(module, "loss_adjoint").count("relax.matmul") == 6  # 2, and 2 cotangents each


def test_gradients_of_a_linear_layer_are_right():
    rng = np.random.default_rng(0)
    x, w = rng.standard_normal((7, 5)), rng.standard_normal((3, 5))
    _, found = st.value_and_grad(Linear, "loss", ["x", "w"])(
        {}, {"x": x.astype("float32"), "w": w.astype("float32")}
    )
    y = x @ w.T
    np.testing.assert_allclose(found["w"].numpy(), 2 * y.T @ x, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(found["x"].numpy(), 2 * y @ w, rtol=1e-5, atol=1e-5)


def test_a_product_used_twice_is_computed_once():
    assert operators(CancelTranspose()(SharedProduct), "main").count("relax.matmul") == 1


def test_a_reshape_is_a_view_of_the_same_memory():
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((4, 6), "float32"))
    with builder.function("main", [x]):
        with builder.dataflow():
            out = builder.emit_output(relax.op.reshape(x, (24,)))
        builder.emit_func_output(out)
    program = st.Program(builder.get(), "main")
    given = program.place({"x": np.arange(24, dtype="float32").reshape(4, 6)})
    result = program(given, {})
    assert result.numpy().tolist() == list(range(24))
    assert result.data_ptr() == given["x"].data_ptr()
