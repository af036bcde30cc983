# SPDX-License-Identifier: Apache-2.0
"""Contents of the gradient function, its omissions, and its errors."""

import numpy as np
import pytest
import tvm
from tvm import relax, tirx
from tvm.relax import op
from tvm.script import ir as I
from tvm.script import relax as R

import sparsetrain as st
from sparsetrain.ad import reverse
from sparsetrain.ad.vjp_rules import DENSE, find_rule
from sparsetrain.embedding import lookup
from sparsetrain.errors import ConfigError
from tests.ad.cases import SPARSE_CASES, build
from tests.helpers import UNOPTIMIZED

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


def test_the_reverse_pass_begins_with_a_constant_and_no_kernel():
    gradient = st.ad.gradient(function({"x": (3,)}, lambda x: op.sum(op.sin(x))), "loss")
    assert operators(gradient)[:2] == ["relax.sin", "relax.sum"]
    assert "relax.ones" not in operators(gradient)


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


def test_missing_dense_rule_names_operator_and_parameter(capfd):
    def body(x):
        return op.sum(emit(op.image.resize2d(x, (2, 2))))

    message = r"'relax.image.resize2d'.*'x'.*ad.defvjp\('relax.image.resize2d', rule\)"
    with pytest.raises(ConfigError, match=message):
        st.ad.gradient(function({"x": (1, 1, 4, 4)}, body), "loss", ["x"])
    assert capfd.readouterr().err == ""  # no warning of TVM's beside the error


def test_a_rule_that_fails_names_the_operator_on_one_line(monkeypatch):
    def rule(output, call, cotangent, builder):
        raise ValueError("only for even numbers\n  or here\n")

    monkeypatch.setitem(DENSE, "relax.exp", rule)
    module = function({"x": (3,)}, lambda x: op.sum(emit(op.exp(x))))
    message = r"'relax.exp' does not take this call \(only for even numbers\): .*ad.defvjp"
    with pytest.raises(ConfigError, match=message):
        st.ad.gradient(module, "loss", ["x"])


def test_a_users_rule_is_used(monkeypatch):
    monkeypatch.setattr("sparsetrain.ad.vjp_rules.DENSE", DENSE)
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


def with_others(body):
    """A module whose function returns (loss, more, ...)."""
    extent = tvm.tirx.Var("B", "int64")
    x = relax.Var("x", relax.TensorType((extent, 3), "float64"))
    builder = relax.BlockBuilder()
    with builder.function("loss", [x]):
        with builder.dataflow():
            out = builder.emit_output(relax.Tuple(body(x)))
        builder.emit_func_output(out)
    return builder.get()


def test_results_behind_the_loss_come_with_it():
    def body(x):
        squares = emit(op.square(x))
        return [emit(op.sum(squares)), squares, emit(op.argmax(x, axis=1)), x]

    program = st.value_and_grad(with_others(body), "loss", ["x"])
    x = np.array([[1.0, 2.0, 3.0], [6.0, 5.0, 4.0]])
    (loss, squares, places, same), gradients = program({"x": x}, {})
    assert loss.numpy() == np.sum(x * x)
    np.testing.assert_array_equal(squares.numpy(), x * x)
    np.testing.assert_array_equal(places.numpy(), [2, 0])
    np.testing.assert_array_equal(same.numpy(), x)
    np.testing.assert_array_equal(gradients["x"].numpy(), 2 * x)
    st.ad.check_grads(program, {"x": x}, {})
    scaled = st.value_and_grad(with_others(body), "loss", ["x"], scaled=True)
    (unscaled, *_), gradients = scaled({"x": x}, {"loss_scale": 2.0})
    assert unscaled.numpy() == loss.numpy()
    np.testing.assert_array_equal(gradients["x"].numpy(), 4 * x)


def test_a_tuple_may_have_a_name_of_its_own():
    def body(x):
        return emit(relax.Tuple([emit(op.sum(x)), emit(op.exp(x))]))

    program = st.value_and_grad(function({"x": (2, 3)}, body), "loss", ["x"])
    x = np.zeros((2, 3))
    (loss, powers), gradients = program({"x": x}, {})
    assert loss.numpy() == 0
    np.testing.assert_array_equal(powers.numpy(), np.ones((2, 3)))
    np.testing.assert_array_equal(gradients["x"].numpy(), np.ones((2, 3)))


def test_a_tuple_must_begin_with_the_loss():
    module = with_others(lambda x: [emit(op.square(x)), emit(op.sum(x))])
    with pytest.raises(ConfigError, match="alone or first in a flat tuple"):
        st.ad.gradient(module, "loss", ["x"])


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


# --- What a rule may not drop, and forms that functions may have --------------------------------


def lookup_sum(table, ids):
    return emit(op.sum(emit(lookup(table, ids))))


FACTOR = {"ids": (3,), "table": (ROWS, 4), "c": (1,)}


@pytest.mark.parametrize("operator", [op.multiply, op.divide], ids=["multiply", "divide"])
def test_a_factor_of_a_table_that_needs_a_gradient_is_refused(operator):
    def body(ids, table, c):
        return lookup_sum(emit(operator(table, c)), ids)

    module = function(FACTOR, body)
    with pytest.raises(ConfigError, match=r"gives no cotangent for argument 1.*'c'.*ad.densify"):
        st.ad.gradient(module, "loss", ["table", "c"])
    assert st.ad.gradient(module, "loss", ["table"]).structure["table"].num_rows == ROWS


def test_a_rule_that_returns_no_list_is_named(monkeypatch):
    monkeypatch.setitem(DENSE, "relax.exp", lambda output, call, cotangent, builder: cotangent)
    with pytest.raises(ConfigError, match=r"rule of operator 'relax.exp' must return a list"):
        st.ad.gradient(function({"x": (3,)}, lambda x: op.sum(emit(op.exp(x)))), "loss", ["x"])


def test_a_rule_whose_cotangent_has_another_shape_is_named(monkeypatch):
    def wrong(output, call, cotangent, builder):
        return [op.reshape(cotangent, (1, 3))]

    monkeypatch.setitem(DENSE, "relax.exp", wrong)
    module = function({"x": (3,)}, lambda x: op.sum(emit(op.exp(x))))
    with pytest.raises(ConfigError, match=r"'relax.exp' gives .* \(1, 3\) for .* \(3\).*'x'"):
        st.ad.gradient(module, "loss", ["x"])


def test_a_rule_for_an_operator_that_is_not_there_is_refused():
    with pytest.raises(ConfigError, match="there is no operator 'relax.flor'"):
        st.ad.defvjp("relax.flor", lambda output, call, cotangent, builder: [cotangent])


def test_a_rule_that_returns_too_few_parts_is_named(monkeypatch):
    monkeypatch.setitem(DENSE, "relax.add", lambda output, call, cotangent, builder: [cotangent])
    module = function({"x": (3,), "y": (3,)}, lambda x, y: op.sum(emit(op.add(x, y))))
    with pytest.raises(ConfigError, match=r"'relax.add' gives no cotangent for argument 1.*'y'"):
        st.ad.gradient(module, "loss", ["x", "y"])


@pytest.mark.parametrize(("shape", "axis"), [((ROWS, 4), -2), ((ROWS,), None)])
def test_take_along_the_first_axis_is_row_sparse_however_it_is_named(shape, axis):
    module = function(
        {"ids": (3,), "table": shape}, lambda ids, table: op.sum(emit(op.take(table, ids, axis)))
    )
    assert st.ad.gradient(module, "loss", ["table"]).structure["table"].shape == shape


def test_take_along_another_axis_of_a_parameter_asks_for_densify():
    def direct(ids, table):
        return op.sum(emit(op.take(table, ids, axis=1)))

    def wrapped(ids, table):
        return op.sum(emit(op.take(emit(st.ad.densify(table)), ids, axis=1)))

    shapes = {"ids": (3,), "table": (5, ROWS)}
    with pytest.raises(ConfigError, match=r"relax.take from parameter 'table'.*ad.densify"):
        st.ad.gradient(function(shapes, direct), "loss", ["table"])
    assert st.ad.gradient(function(shapes, wrapped), "loss", ["table"]).structure["table"] is None


def test_a_reshape_that_breaks_rows_is_refused():
    def body(ids, table):
        return lookup_sum(emit(op.reshape(table, (12, 2))), ids)

    with pytest.raises(ConfigError, match=r"reshaped from \(6, 4\) to rows of width 2.*last axis"):
        st.ad.gradient(function({"ids": (3,), "table": (6, 4)}, body), "loss", ["table"])


def test_tables_in_a_tuple_variable_are_joined_like_any_others():
    def body(ids, first, second):
        pair = emit(relax.Tuple([first, second]))
        return lookup_sum(emit(op.concat(pair, axis=0)), ids)

    shapes = {"ids": (3,), "first": (6, 4), "second": (7, 4)}
    structure = st.ad.gradient(function(shapes, body), "loss", ["first", "second"]).structure
    assert [structure[name].num_rows for name in ("first", "second")] == [6, 7]


def test_activations_in_a_tuple_variable_are_joined_like_any_others():
    def body(x, y):
        pair = emit(relax.Tuple([emit(op.exp(x)), y]))
        return op.sum(emit(op.square(emit(op.concat(pair, axis=0)))))

    module = function({"x": (2, 3), "y": (4, 3)}, body)
    _, found = st.value_and_grad(module, "loss", ["x", "y"])(
        {}, {"x": np.zeros((2, 3)), "y": np.ones((4, 3))}
    )
    assert np.allclose(found["x"].numpy(), 2) and np.allclose(found["y"].numpy(), 2)


def test_a_split_table_is_refused_by_name_or_densified():
    def body(ids, table):
        parts = emit(op.split(table, 2, axis=0))
        return lookup_sum(emit(relax.TupleGetItem(parts, 0)), ids)

    module = function({"ids": (3,), "table": (6, 4)}, body)
    with pytest.raises(ConfigError, match=r"'relax.split' has no rule for the row-sparse"):
        st.ad.gradient(module, "loss", ["table"])
    _, found = st.value_and_grad(module, "loss", ["table"], densify=["table"])(
        {}, {"ids": [0, 2, 2], "table": np.ones((6, 4))}
    )
    assert found["table"].numpy()[:, 0].tolist() == [1, 0, 2, 0, 0, 0]


def cast(steps=0):
    """A sum of squares, after some steps, whose extents a match_cast brings in."""
    x = relax.Var("x", relax.TensorType(ndim=2, dtype="float32"))
    extents = [tvm.tirx.Var(name, "int64") for name in "nm"]
    builder = relax.BlockBuilder()
    with builder.function("loss", [x]):
        with builder.dataflow():
            y = x
            for _ in range(steps):
                y = emit(op.exp(y))
            y = builder.match_cast(y, relax.TensorType(extents, "float32"))
            loss = builder.emit_output(op.sum(emit(op.multiply(y, y))))
        builder.emit_func_output(loss)
    return builder.get()


def test_gradients_pass_a_match_cast():
    _, found = st.value_and_grad(cast(), "loss", ["x"])({}, {"x": np.ones((2, 3), "float32")})
    assert found["x"].numpy().tolist() == [[2.0] * 3] * 2


def test_each_operator_of_unknown_shape_is_looked_at_once(monkeypatch):
    asked = []
    monkeypatch.setattr(reverse, "find_rule", lambda *of: asked.append(of[0]) or find_rule(*of))
    st.ad.gradient(cast(steps=30), "loss", ["x"])
    assert len(asked) <= 2 * 32  # before its rule is met, and then


def test_a_wrong_kind_of_parameter_is_refused_by_name():
    module = function({"ids": (3,), "table": (5, 2)}, lambda ids, table: lookup_sum(table, ids))
    with pytest.raises(ConfigError, match=r"argument 'ids' is .* not a floating-point tensor"):
        st.ad.gradient(module, "loss", ["ids"])
    with pytest.raises(ConfigError, match=r"wrt must be a list of names: pass wrt=\['table'\]"):
        st.ad.gradient(module, "loss", "table")


def test_inputs_can_be_checked_too():
    module = function({"x": (3,)}, lambda x: op.sum(emit(op.square(x))), dtype="float64")
    st.ad.check_grads(st.value_and_grad(module, "loss", ["x"]), {}, {"x": np.arange(3.0)})


# --- Ids that a model computes cannot be checked where they enter -------------------------------


def sliced(ids, table):
    chosen = emit(op.strided_slice(ids, axes=[0], begin=[0], end=[2]))
    return lookup_sum(table, chosen)


@pytest.mark.parametrize("bad", [6, -1, 10**9])
def test_a_computed_id_outside_the_table_reads_nan_and_updates_nothing(bad):
    module = function({"ids": (3,), "table": (5, 2)}, sliced)
    program = st.value_and_grad(module, "loss", ["table"])
    params = program.place({"table": np.ones((5, 2), "float32")})
    loss, gradients = program(params, {"ids": [0, bad, 1]})
    assert np.isnan(loss.numpy())
    optimizer = st.optim.sgd(0.1)
    with pytest.raises(
        st.errors.DataError, match="1 row indices lie outside the 5 rows of 'table'"
    ):
        optimizer.apply_(params, gradients, optimizer.init(params))
    assert (params["table"].numpy() == 1).all()


def test_a_computed_id_just_behind_the_table_reads_nan_and_writes_nowhere():
    def loss(ids, table):
        behind = emit(op.add(ids, relax.const(1, "int64")))
        read = emit(op.take(table, behind, axis=0))
        return emit(op.sum(emit(op.where(op.isnan(read), relax.const(3.0), read))))

    program = st.value_and_grad(function({"ids": (3,), "table": (5, 2)}, loss), "loss", ["table"])
    whole = np.ones((9, 2), "float32")
    params = {"table": st.runtime.as_tensor(whole[:5])}
    value, gradients = program(params, {"ids": [0, 4, 1]})
    assert value.numpy() == 2 * (1 + 3 + 1)
    optimizer = st.optim.sgd(1.0)
    optimizer.apply_(params, gradients, optimizer.init(params))
    np.testing.assert_array_equal(params["table"].numpy()[:, 0], [1, 0, 0, 1, 1])
    np.testing.assert_array_equal(gradients["table"].to_dense().numpy()[:, 0], [0, 1, 1, 0, 0])


def test_ids_given_as_a_tensor_are_checked():
    module = function({"ids": (3,), "table": (5, 2)}, lambda ids, table: lookup_sum(table, ids))
    ids = st.runtime.as_tensor(np.array([0, 99999, 1]))
    with pytest.raises(st.errors.DataError, match=r"'ids': id 99999 at \(1,\)"):
        st.value_and_grad(module, "loss", ["table"])({}, {"ids": ids, "table": np.ones((5, 2))})


ORDERS = [
    (0, 1, 0),
    *(pytest.param(order, marks=pytest.mark.slow) for order in [(0, 1), (1, 0), (0, 0, 1)]),
]


@pytest.mark.parametrize("order", ORDERS)
def test_a_fixed_part_joined_with_a_symbolic_one_is_differentiated(order):
    def body(x, w, p, n):
        h = emit(op.nn.relu(emit(op.matmul(x, w))))
        one = emit(op.sum(emit(op.multiply(h, p)), [1], keepdims=True))  # (B, 1)
        scores = emit(op.matmul(h, emit(op.permute_dims(n))))  # (B, K)
        joined = emit(op.concat([(one, scores)[part] for part in order], 1))
        first = emit(op.strided_slice(emit(op.nn.log_softmax(joined, -1)), [1], [0], [1]))
        return op.negative(emit(op.mean(first)))

    batch, count = (tirx.Var(name, "int64") for name in "BK")
    shapes = {"x": (batch, 4), "w": (4, 4), "p": (batch, 4), "n": (count, 4)}
    module = function(shapes, body, "float64")
    program = st.value_and_grad(module, "loss", list(shapes), target=UNOPTIMIZED)
    rng, sizes = np.random.default_rng(0), {"x": (5, 4), "w": (4, 4), "p": (5, 4), "n": (7, 4)}
    st.ad.check_grads(
        program, {name: rng.standard_normal(size) for name, size in sizes.items()}, {}
    )


@pytest.mark.parametrize(
    "read",
    [
        lambda table, ids: op.gather_nd(table, ids),
        lambda table, ids: op.gather_elements(table, ids, axis=1),
        lambda table, ids: op.take(emit(op.permute_dims(table)), ids, axis=1),
        lambda table, ids: op.index_tensor(table, [emit(op.sum(ids, [1])), emit(op.sum(ids, [1]))]),
    ],
    ids=["gather_nd", "gather_elements", "take", "index_tensor"],
)
def test_elements_of_a_parameter_are_read_with_a_dense_cotangent_on_request_alone(read):
    shapes = {"table": (ROWS, 4), "ids": (3, 2)}

    def loss(table, ids):
        return op.sum(emit(read(table, ids)))

    with pytest.raises(ConfigError, match=r"from parameter 'table' has .* put ad\.densify around"):
        st.ad.gradient(function(shapes, loss), "loss", ["table"])
    module = function(shapes, lambda table, ids: loss(emit(st.ad.densify(table)), ids))
    assert st.ad.gradient(module, "loss", ["table"]).structure == {"table": None}


# Copies of a table, and a read of a few of their rows that no operator carries back by rows.
DENSE_COPIES = {
    "take in a row of each example": lambda t, ids: op.take(
        emit(op.broadcast_to(t, (ids.ty.shape[0], *t.ty.shape))), ids, axis=1
    ),
    "take of a broadcast table": lambda t, ids: op.take(
        emit(op.broadcast_to(t, (3, *t.ty.shape))), ids, axis=1
    ),
    "take of a tiled table": lambda t, ids: op.take(emit(op.tile(t, (2, 1, 1))), ids, axis=1),
    "take of a repeated table": lambda t, ids: op.take(
        emit(op.repeat(emit(op.expand_dims(t, 0)), 2, 0)), ids, axis=1
    ),
    "take of a flipped table": lambda t, ids: op.take(
        emit(op.flip(emit(op.expand_dims(t, 0)), 1)), ids, axis=1
    ),
    "take of a padded table": lambda t, ids: op.take(
        emit(op.nn.pad(emit(op.expand_dims(t, 0)), [0, 0, 1, 0, 0, 0])), ids, axis=1
    ),
    "take of a transposed table": lambda t, ids: op.take(emit(op.einsum([t], "ij->ji")), ids, 1),
    "take of a table with others in a stack": lambda t, ids: op.take(
        emit(op.stack([t, emit(op.exp(t))], 1)), ids, 0
    ),
    "a field of a tuple": lambda t, ids: op.take(
        emit(
            op.flip(
                emit(relax.TupleGetItem(emit(relax.Tuple([emit(op.expand_dims(t, 0)), t])), 0)), 0
            )
        ),
        ids,
        axis=1,
    ),
    "index_tensor of a table on its side": lambda t, ids: op.index_tensor(
        emit(op.permute_dims(t)), [emit(op.multiply(ids, relax.const(0, "int64"))), ids]
    ),
    "a few rows of an expanded table": lambda t, ids: op.strided_slice(
        emit(op.expand_dims(t, 0)), [1], [2], [4]
    ),
    "a few rows of a transposed table": lambda t, ids: op.strided_slice(
        emit(op.permute_dims(t)), [1], [2], [4]
    ),
    "a part of a split table": lambda t, ids: relax.TupleGetItem(emit(op.split(t, 5, axis=0)), 2),
    "dynamic_strided_slice": lambda t, ids: op.dynamic_strided_slice(
        t, *(relax.const(np.array(n), "int64") for n in ([0, 0], [2, 4], [1, 1]))
    ),
}


@pytest.mark.parametrize("name", DENSE_COPIES)
def test_a_few_rows_of_copies_of_a_table_are_row_sparse_or_refused_by_name(name):
    batch = tirx.Var("B", "int64")
    shapes = {"table": (ROWS, 4), "ids": (batch,)}

    def loss(table, ids):
        return op.sum(emit(op.sin(emit(DENSE_COPIES[name](table, ids)))))

    with pytest.raises(ConfigError, match=r"'table'.*(densify|leave the parameter out)"):
        st.ad.gradient(function(shapes, loss), "loss", ["table"])


def test_copies_of_which_most_is_read_have_a_dense_gradient():
    """A token of its own, in front of each example."""

    def loss(token, x):
        batch = x.ty.shape[0]
        tokens = emit(op.broadcast_to(emit(op.expand_dims(token, 0)), (batch, 1, 4)))
        joined = emit(op.concat([tokens, emit(op.exp(x))], axis=1))
        return op.sum(emit(op.take(joined, relax.const(0), axis=1)))

    shapes = {"token": (1, 4), "x": (tirx.Var("B", "int64"), 3, 4)}
    assert st.ad.gradient(function(shapes, loss), "loss", ["token"]).structure == {"token": None}


@pytest.mark.parametrize("bad", [-1, 5])
def test_a_constant_id_outside_a_table_is_refused_by_name(bad):
    def loss(table):
        return op.sum(emit(lookup(table, relax.const([0, bad]))))

    message = rf"constant.* id {bad} at \(1,\) is outside the axis of length 5"
    with pytest.raises(ConfigError, match=message):
        st.value_and_grad(function({"table": (5, 2)}, loss), "loss", ["table"])


def test_ids_of_an_activation_are_checked_where_its_rows_are_as_many_as_a_batch_has():
    def loss(ids, x):
        return op.sum(emit(lookup(emit(op.exp(x)), ids)))

    shapes = {"ids": (3,), "x": (tirx.Var("B", "int64"), 2)}
    program = st.Program(function(shapes, loss), "loss")
    for bad in (-1, 4):
        with pytest.raises(st.errors.DataError, match=rf"'ids': id {bad} at \(1,\) is outside"):
            program({"x": np.ones((4, 2), "float32")}, {"ids": [0, bad, 1]})


def test_a_computed_id_below_0_writes_nowhere_of_a_dense_gradient():
    """Memory in front of the tensor was written."""
    module = function({"ids": (3,), "table": (5, 2)}, sliced)
    program = st.value_and_grad(module, "loss", ["table"], densify=["table"])
    _, gradients = program({"table": np.ones((5, 2), "float32")}, {"ids": [0, -(10**9), 1]})
    np.testing.assert_array_equal(gradients["table"].numpy()[:, 0], [1, 0, 0, 0, 0])
