# SPDX-License-Identifier: Apache-2.0
"""What the gradient function contains, what it leaves out, and what it refuses."""

import numpy as np
import pytest
import tvm
from tvm import relax
from tvm.relax import op
from tvm.script import ir as I
from tvm.script import relax as R

import sparsetrain as st
from sparsetrain.embedding import lookup
from sparsetrain.errors import ConfigError
from tests.ad.cases import SPARSE_CASES, build

ROWS = 12345  # a number that nothing else in these programs has


def function(params, body, dtype="float32", attrs=None):
    """A module with one function ``loss`` of variables named as in `params`."""
    variables = {
        name: relax.Var(name, relax.TensorType(shape, "int64" if name == "ids" else dtype))
        for name, shape in params.items()
    }
    builder = relax.BlockBuilder()
    with builder.function("loss", list(variables.values()), attrs=attrs or {}):
        with builder.dataflow():
            result = builder.emit_output(builder.normalize(body(**variables)))
        builder.emit_func_output(result)
    return builder.get()


def emit(expr):
    return relax.BlockBuilder.current().emit(expr)


def operators(gradient):
    bindings = gradient.module[gradient.function].body.blocks[0].bindings
    return [b.value.op.name for b in bindings if isinstance(b.value, relax.Call)]


def tied(table, ids):
    rows = emit(lookup(table, ids))
    scores = emit(op.matmul(rows, emit(op.permute_dims(table))))
    return op.sum(scores)


TIED = {"table": (ROWS, 4), "ids": (3,)}


# The others transform the whole table in their forward pass.
LOOKED_UP_AS_IS = [
    case
    for case in SPARSE_CASES
    if case.rule in ("relax.take", "relax.sparsetrain.lookup", "relax.sparsetrain.embedding_bag")
]


@pytest.mark.parametrize("case", LOOKED_UP_AS_IS, ids=lambda case: case.name)
def test_no_value_has_the_rows_of_the_table(case):
    gradient = st.ad.gradient(build(case), "loss", list(case.params))
    for binding in gradient.module[gradient.function].body.blocks[0].bindings[:-1]:
        shape = getattr(binding.var.ty, "shape", None) or ()
        assert not shape or shape[0] != 6 or len(shape) != 2


def test_tied_embedding_names_the_parameter_and_both_ways_out():
    with pytest.raises(ConfigError, match=r"'table'.*tied.*densify=\['table'\].*two parameters"):
        st.ad.gradient(function(TIED, tied), "loss", ["table"])


def test_densify_of_a_parameter_allows_a_tied_embedding():
    gradient = st.ad.gradient(function(TIED, tied), "loss", ["table"], densify=["table"])
    assert gradient.structure == {"table": None}


def test_missing_sparse_rule_names_operator_parameter_and_ways_out():
    def body(table, ids):
        return op.sum(emit(lookup(emit(op.exp(table)), ids)))

    message = r"'relax.exp'.*'table'.*ad.defvjp\('relax.exp', rule, row_sparse=True\).*ad.densify"
    with pytest.raises(ConfigError, match=message):
        st.ad.gradient(function(TIED, body), "loss", ["table"])


def test_missing_dense_rule_names_operator_and_parameter():
    def body(x):
        return op.sum(emit(op.floor(x)))

    with pytest.raises(ConfigError, match=r"'relax.floor'.*'x'.*ad.defvjp\('relax.floor', rule\)"):
        st.ad.gradient(function({"x": (3,)}, body), "loss", ["x"])


def test_a_users_rule_is_used(monkeypatch):
    from sparsetrain.ad.rules import DENSE

    monkeypatch.setattr("sparsetrain.ad.rules.DENSE", DENSE)
    before = dict(DENSE)
    try:
        st.ad.defvjp("relax.floor", lambda output, call, cotangent, builder: [cotangent])
        gradient = st.ad.gradient(
            function({"x": (3,)}, lambda x: op.sum(emit(op.floor(x)))), "loss", ["x"]
        )
        assert gradient.structure == {"x": None}
    finally:
        DENSE.clear()
        DENSE.update(before)


def test_nothing_is_emitted_for_what_needs_no_gradient():
    def body(x, w, v):
        return op.sum(emit(op.matmul(emit(op.matmul(x, w)), v)))

    shapes = {"x": (2, 3), "w": (3, 4), "v": (4, 5)}
    one = operators(st.ad.gradient(function(shapes, body), "loss", ["v"]))
    all_three = operators(st.ad.gradient(function(shapes, body), "loss", ["x", "w", "v"]))
    assert one.count("relax.matmul") == 3  # two forward, one for v
    assert all_three.count("relax.matmul") == 6


def test_the_forward_pass_is_not_copied():
    def body(x, w):
        return op.sum(emit(op.exp(emit(op.matmul(x, w)))))

    found = operators(st.ad.gradient(function({"x": (2, 3), "w": (3, 4)}, body), "loss", ["w"]))
    assert found.count("relax.exp") == 1


def test_stop_gradient_stops():
    def body(x, w):
        stopped = emit(op.grad.no_grad(emit(op.multiply(x, w))))
        return op.sum(emit(op.multiply(stopped, w)))

    gradient = st.ad.gradient(function({"x": (3,), "w": (3,)}, body), "loss", ["w"])
    assert operators(gradient).count("relax.multiply") == 3  # two forward, one backward


def test_default_is_every_float_parameter_after_the_inputs():
    def body(ids, table, w):
        return op.sum(emit(op.multiply(emit(lookup(table, ids)), w)))

    shapes = {"ids": (3,), "table": (ROWS, 4), "w": (4,)}
    gradient = st.ad.gradient(function(shapes, body, attrs={"num_input": 1}), "loss")
    assert list(gradient.structure) == ["table", "w"]


@pytest.mark.parametrize(
    ("wrt", "message"),
    [
        (["nobody"], "no argument 'nobody'"),
        (["x", "unused"], "does not depend on parameter 'unused'"),
    ],
)
def test_wrong_names_are_refused(wrt, message):
    module = function({"x": (3,), "unused": (3,)}, lambda x, unused: op.sum(x))
    with pytest.raises(ConfigError, match=message):
        st.ad.gradient(module, "loss", wrt)


def test_only_scalar_float_results_are_differentiated():
    with pytest.raises(ConfigError, match="scalar floating-point"):
        st.ad.gradient(function({"x": (3,)}, lambda x: op.exp(x)), "loss", ["x"])


def test_unknown_function_lists_those_there_are():
    with pytest.raises(ConfigError, match=r"no Relax function 'gone'.*\['loss'\]"):
        st.ad.gradient(function({"x": (3,)}, lambda x: op.sum(x)), "gone")


@I.ir_module
class NoDataflow:
    """A function without a dataflow block."""

    @R.function
    def loss(x: R.Tensor((3,), "float32")) -> R.Tensor((), "float32"):
        s = R.sum(x)
        return s


@I.ir_module
class UsedOutput:
    """An output of the block that is used inside it, too."""

    @R.function
    def loss(x: R.Tensor((3,), "float32")) -> R.Tensor((), "float32"):
        with R.dataflow():
            y = R.multiply(x, x)
            s = R.sum(y)
            R.output(y, s)
        return s


def test_functions_without_a_dataflow_block_are_refused():
    with pytest.raises(ConfigError, match=r"one dataflow block.*ConvertToDataflow"):
        st.ad.gradient(NoDataflow, "loss", ["x"])


def test_an_output_may_be_used_inside_the_block():
    _, gradients = st.value_and_grad(UsedOutput, "loss", ["x"])({}, {"x": [1.0, 2.0, 3.0]})
    assert gradients["x"].numpy().tolist() == [2.0, 4.0, 6.0]


def test_ids_are_checked_against_the_table():
    def body(ids, table):
        return op.sum(emit(lookup(table, ids)))

    program = st.value_and_grad(function({"ids": (3,), "table": (5, 2)}, body), "loss", ["table"])
    table = tvm.runtime.tensor(np.ones((5, 2), "float32"))
    for bad in (5, -1, 2**40, -(2**63)):
        with pytest.raises(st.errors.DataError, match=rf"'ids': id {bad} at \(1,\).*5 rows"):
            program({"table": table}, {"ids": [0, bad, 1]})
