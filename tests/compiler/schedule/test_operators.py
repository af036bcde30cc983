# SPDX-License-Identifier: Apache-2.0
"""Operators other than products: reductions, maps, and what no rule knows."""

import numpy as np
import pytest
from tvm import relax, tirx

import sparsetrain as st
from tests.compiler.schedule.relax_programs import (
    assert_close,
    compile_main,
    function,
    rules_by_kernel,
)
from tests.helpers import slow_except

op = relax.op


def _softmax(x):
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


# name -> (program, reference, rule of the kernel that matters)
CASES = {
    "sum of columns": (lambda x: op.sum(x, 0), lambda x: x.sum(0), "SingleReduction"),
    "sum of rows": (lambda x: op.sum(x, 1), lambda x: x.sum(1), "SingleReduction"),
    "sum of rows kept": (
        lambda x: op.sum(x, 1, keepdims=True),
        lambda x: x.sum(1, keepdims=True),
        "SingleReduction",
    ),
    "sum of everything": (lambda x: op.sum(x), lambda x: x.sum(), "SingleReduction"),
    "mean of everything": (lambda x: op.mean(x), lambda x: x.mean(), "SingleReduction"),
    "mean of columns": (lambda x: op.mean(x, 0), lambda x: x.mean(0), "SingleReduction"),
    "largest of rows": (lambda x: op.max(x, 1), lambda x: x.max(1), "SingleReduction"),
    "largest of columns": (lambda x: op.max(x, 0), lambda x: x.max(0), "SingleReduction"),
    "squared norm": (
        lambda x: op.sum(op.multiply(x, x)),
        lambda x: (x * x).sum(),
        "SingleReduction",
    ),
    "norm of rows": (
        lambda x: op.sqrt(op.sum(op.multiply(x, x), 1)),
        lambda x: np.sqrt((x * x).sum(1)),
        "SingleReduction",
    ),
    "position of the largest": (
        lambda x: op.argmax(x, 1),
        lambda x: x.argmax(1),
        "SingleReduction",
    ),
    "softmax": (lambda x: op.nn.softmax(x), _softmax, None),
    "variance": (lambda x: op.variance(x, 1), lambda x: x.var(1), "RowwiseReductions"),
    "relu": (lambda x: op.nn.relu(x), lambda x: np.maximum(x, 0), "Elementwise"),
    "sigmoid of the double": (
        lambda x: op.sigmoid(op.add(x, x)),
        lambda x: 1 / (1 + np.exp(-2 * x)),
        "Elementwise",
    ),
    "transpose": (lambda x: op.permute_dims(x), lambda x: x.T, "Elementwise"),
    "concat": (
        lambda x: op.concat([x, op.negative(x)], 1),
        lambda x: np.concatenate([x, -x], 1),
        "Elementwise",
    ),
    "flatten": (
        lambda x: op.flatten(op.nn.relu(x)),
        lambda x: np.maximum(x, 0).reshape(-1),
        "Elementwise",
    ),
    "every second column": (
        lambda x: op.strided_slice(x, [1], [3], [20], [2]),
        lambda x: x[:, 3:20:2],
        "Elementwise",
    ),
    "times a vector": (
        lambda x: op.matmul(x, op.full((37,), relax.const(0.5), "float32")),
        lambda x: x.sum(1) / 2,
        "SingleReduction",
    ),
    "outer products": (
        lambda x: op.matmul(op.expand_dims(x, 2), op.expand_dims(x, 1)),
        lambda x: x[:, :, None] * x[:, None, :],
        "Elementwise",
    ),
    "running sum": (lambda x: op.cumsum(x, 1), lambda x: x.cumsum(1), None),
    "sorted rows": (lambda x: op.sort(x, 1), lambda x: np.sort(x, 1), None),
}


@pytest.mark.parametrize("name", CASES)
def test_operator_has_the_rule_meant_for_it(name):
    program, _, rule = CASES[name]
    assert rule in rules_by_kernel(function({"x": ("b", 37)}, program)).values()


# Each has another in its place that is scheduled alike.
ALIKE = (
    *("sum of rows kept", "mean of everything", "mean of columns", "largest of columns"),
    *("norm of rows", "sigmoid of the double", "flatten"),
)


@pytest.mark.parametrize("name", slow_except({*CASES} - {*ALIKE}, CASES))
def test_operator_agrees_with_numpy(name):
    program, reference, _ = CASES[name]
    run = compile_main(function({"x": ("b", 37)}, program))
    for batch in (1, 5, 300, 700):
        # Around a half, so that sums do not cancel and rounding stays small beside them.
        x = np.random.default_rng(batch).standard_normal((batch, 37), dtype="float32") + 0.5
        assert_close([run(x)], [reference(x.astype("float64"))])


@pytest.mark.parametrize(
    "target, width", [("host", 1), ("host", 16), ("host", 100), ("avx2", 100), ("plain", 16)]
)
def test_column_and_row_sums_are_right_at_any_width_on_every_target(target, width):
    module = function(
        {"x": ("b", width)}, lambda x: relax.Tuple([op.sum(x, 0), op.sum(x, 1), op.sum(x)])
    )
    run = compile_main(module, target)
    for batch in (1, 256, 1000, 5000):
        x = np.random.default_rng(batch).random((batch, width), dtype="float32")
        exact = x.astype("float64")
        assert_close(run(x), [exact.sum(0), exact.sum(1), exact.sum()])


def test_a_reduction_of_static_shape_is_right_too():
    module = function({"x": (3, 9001)}, lambda x: relax.Tuple([op.sum(x, 1), op.sum(x, 0)]))
    x = np.random.default_rng(0).random((3, 9001), dtype="float32")
    exact = x.astype("float64")
    assert_close(compile_main(module)(x), [exact.sum(1), exact.sum(0)])


def test_an_unchanged_parameter_and_a_constant_can_be_returned():
    module = function({"x": ("b", 4)}, lambda x: relax.Tuple([x, relax.const(np.arange(3.0))]))
    x = np.ones((2, 4), "float32")
    assert_close(compile_main(module)(x), [x, np.arange(3.0)])


def test_integers_are_added_exactly():
    batch = tirx.Var("b", "int64")
    ids = relax.Var("ids", relax.TensorType((batch, 6), "int64"))
    builder = relax.BlockBuilder()
    with builder.function("main", [ids]):
        with builder.dataflow():
            result = builder.emit_output(op.sum(op.add(ids, ids), 0))
        builder.emit_func_output(result)
    ids = np.random.default_rng(0).integers(-(2**60), 2**60, (1000, 6))
    np.testing.assert_array_equal(compile_main(builder.finalize())(ids), (2 * ids).sum(0))


def test_a_sum_of_nothing_is_0():
    rows = tirx.Var("B", "int64")
    x = relax.Var("x", relax.TensorType([rows, 0], "float32"))
    builder = relax.BlockBuilder()
    with builder.function("main", [x]):
        with builder.dataflow():
            gram = builder.emit(op.matmul(x, builder.emit(op.permute_dims(x))))
            result = builder.emit_output(gram)
        builder.emit_func_output(result)
    program = st.Program(builder.get(), "main", target="cpu")
    freed = [st.runtime.as_tensor(np.full((3, 3), 7.0, np.float32)) for _ in range(4)]
    del freed
    assert not program({}, {"x": np.empty((3, 0), np.float32)}).numpy().any()
