# SPDX-License-Identifier: Apache-2.0
"""Values that the mixed-precision pass rounds, and those that it leaves alone."""

import numpy as np
import pytest
import tvm
from tvm import relax, tirx

from sparsetrain.compiler.precision import BFLOAT16, FLOAT16, to_half
from sparsetrain.compiler.precision.policy import (
    BFLOAT16_BY_TILES,
    ROUND_INSIDE,
    has_whole_vectors,
)
from sparsetrain.errors import ConfigError

op = relax.op
ZERO = relax.const(0.0, "float32")


def module(shapes, body):
    batch = tirx.Var("b", "int64")
    builder = relax.BlockBuilder()
    variables = [
        relax.Var(name, relax.TensorType([batch if n == "b" else n for n in shape], "float32"))
        for name, shape in shapes.items()
    ]
    with builder.function("main", variables):
        with builder.dataflow():
            result = builder.emit_output(body(builder, *variables))
        builder.emit_func_output(result)
    return builder.finalize()


def calls(mod, name):
    values = relax.analysis.get_var2val(mod["main"]).values()
    found = [v for v in values if isinstance(v, relax.Call) and isinstance(v.op, tvm.ir.Op)]
    return [v for v in found if v.op.name == name]


def dtypes(mod, name):
    return [[str(a.ty.dtype) for a in call.args] for call in calls(mod, name)]


LINEAR = {"x": ("b", 8), "w": (4, 8)}


def linear(builder, x, w):
    transposed = builder.emit(op.permute_dims(w))
    return builder.emit(op.matmul(x, transposed))


@pytest.mark.parametrize("policy", [BFLOAT16, FLOAT16])
def test_a_product_rounds_its_operands_and_returns_float32(policy):
    half = to_half(module(LINEAR, linear), "main", policy)
    assert dtypes(half, "relax.matmul") == [[policy.dtype, policy.dtype]]
    assert str(half["main"].ret_ty.dtype) == "float32"
    assert [str(p.ty.dtype) for p in half["main"].params] == ["float32", "float32"]


@pytest.mark.parametrize("compare", [op.greater, op.less_equal])
def test_a_value_that_products_and_neighbours_read_is_stored_in_half(compare):
    def body(builder, x, w):
        h = builder.emit(op.nn.relu(x))
        y = builder.emit(op.matmul(h, builder.emit(op.permute_dims(w))))
        mask = builder.emit(compare(h, ZERO))
        return builder.emit(relax.Tuple([y, mask]))

    half = to_half(module(LINEAR, body), "main", BFLOAT16)
    widened = [c for c in calls(half, "relax.astype") if str(c.ty.dtype) == "float32"]
    assert [str(c.args[0].ty.dtype) for c in widened] == ["bfloat16"]


def test_a_value_that_anybody_else_reads_stays_float32():
    def body(builder, x, w):
        h = builder.emit(op.nn.relu(x))
        y = builder.emit(op.matmul(h, builder.emit(op.permute_dims(w))))
        return builder.emit(relax.Tuple([y, builder.emit(op.exp(h))]))

    half = to_half(module(LINEAR, body), "main", BFLOAT16)
    assert dtypes(half, "relax.exp") == [["float32"]]
    assert all(str(c.ty.dtype) == "bfloat16" for c in calls(half, "relax.astype"))


def test_one_cast_serves_all_readers_and_transposes_follow_it():
    def body(builder, x, w):
        y = builder.emit(op.matmul(x, builder.emit(op.permute_dims(w))))
        z = builder.emit(op.matmul(builder.emit(op.permute_dims(x)), x))
        return builder.emit(relax.Tuple([y, z]))

    half = to_half(module(LINEAR, body), "main", BFLOAT16)
    assert len(calls(half, "relax.astype")) == 2
    assert dtypes(half, "relax.permute_dims") == [["bfloat16"], ["bfloat16"]]


@pytest.mark.parametrize("outputs, inputs", [(1, 8), (4, 1)])
def test_products_with_a_single_row_or_column_stay_float32(outputs, inputs):
    shapes = {"x": ("b", inputs), "w": (outputs, inputs)}
    half = to_half(module(shapes, linear), "main", BFLOAT16)
    assert not calls(half, "relax.astype")


def test_a_policy_can_be_extended():
    def body(builder, x, w):
        h = builder.emit(op.nn.relu(x))
        y = builder.emit(op.matmul(h, builder.emit(op.permute_dims(w))))
        return builder.emit(relax.Tuple([y, builder.emit(op.exp(h))]))

    policy = BFLOAT16._replace(neighbours=BFLOAT16.neighbours | {"relax.exp"})
    half = to_half(module(LINEAR, body), "main", policy)
    assert any(str(c.ty.dtype) == "float32" for c in calls(half, "relax.astype"))


EVERYWHERE = dict.fromkeys(ROUND_INSIDE, has_whole_vectors)


@pytest.mark.parametrize(
    ("policy", "width", "rounded"),
    [
        (BFLOAT16, 32, []),
        (BFLOAT16_BY_TILES, 24, []),
        (BFLOAT16_BY_TILES, 32, ["interaction"]),
        (BFLOAT16_BY_TILES, 64, ["interaction", "interaction_backward"]),
        (BFLOAT16._replace(always=EVERYWHERE), 32, ["interaction", "interaction_backward"]),
    ],
)
def test_the_interaction_rounds_inside_its_kernels_as_the_policy_says(policy, width, rounded):
    import sparsetrain as st

    module = st.models.DLRM(rows=[9, 9], dim=width, num_dense=13).export()
    half = st.value_and_grad(module, "loss", precision=policy).module["loss_adjoint"]
    lines = [line for line in str(half).splitlines() if 'rounds="bfloat16"' in line]
    names = ("interaction", "interaction_backward")
    assert [n for n in names if any(f".{n}(" in line for line in lines)] == rounded


def test_an_operator_without_a_kernel_that_rounds_is_refused():
    def body(builder, x, w):
        return builder.emit(op.exp(x))

    policy = BFLOAT16._replace(always={"relax.exp": lambda call: True})
    with pytest.raises(
        ConfigError, match=r"operator 'relax.exp' has no kernel that rounds.*matmul"
    ):
        to_half(module(LINEAR, body), "main", policy)


def test_the_gradient_of_a_model_is_near_the_float32_one():
    import sparsetrain as st

    model = st.models.DLRM(rows=[50, 20], dim=8, bottom=(32,), top=(16,), num_dense=13)
    params = model.initialize(0)
    random = np.random.default_rng(0)
    batch = st.data.Batch(
        dense=random.standard_normal((64, 13), dtype=np.float32),
        ids=random.integers(0, 20, (64, 2)),
        labels=(random.random(64) < 0.5).astype(np.float32),
    )
    inputs = model.inputs(batch)
    exact_loss, exact = st.value_and_grad(model.export(), "loss")(params, inputs)
    loss, near = st.value_and_grad(model.export(), "loss", precision=BFLOAT16)(params, inputs)
    assert float(loss.numpy()) == pytest.approx(float(exact_loss.numpy()), abs=1e-3)
    for name, gradient in near.items():
        values = [getattr(g, "values", g).numpy() for g in (gradient, exact[name])]
        assert values[0].dtype == np.float32
        error = np.linalg.norm(values[0] - values[1]) / np.linalg.norm(values[1])
        # Rounding moves some values across ReLU's corner, which weighs more than 2^-8 each.
        assert error < 0.1, name
