# SPDX-License-Identifier: Apache-2.0
"""Bags against float64 NumPy, forward and back, and what the gradient of a bag costs."""

import numpy as np
import pytest
import tvm
from tvm import relax

import sparsetrain as st
from sparsetrain.embedding import embedding_bag, lookup
from sparsetrain.runtime import as_numpy
from tests.embedding.bags import ROWS, Kind, in_numpy
from tests.helpers import assert_row_sparse, assert_same_bits, dense_sum, slow_except

KINDS = {
    "sum": Kind(),
    "mean": Kind("mean"),
    "weighted": Kind(weighted=True),
    "sum, 3 features": Kind(features=3),
    "mean, 3 features": Kind("mean", features=3, width=17, id_dtype="int64"),
    "mean of one of 3 features": Kind(("sum", "mean", "sum"), features=3),
    "mean of two of 3 features": Kind(("mean", "sum", "mean"), features=3, dtype="float64"),
    "weighted, 3 features": Kind(weighted=True, features=3, dtype="float64"),
    "sum, prime width above the widest vector": Kind(width=131),
    "weighted, one column": Kind(weighted=True, width=1),
}
# Name -> lengths of the bags; all are multiples of 3, for the kinds with 3 features.
BAGS = {
    "uneven": [3, 0, 1, 5, 2, 0],
    "one id each": [1] * 12,
    "all empty": [0] * 6,
    "one bag a feature": [4, 2, 3],
    "one long, the others empty": [0, 0, 300, 0, 0, 0],
    "ends with empty bags": [2, 2, 2, 2, 0, 0, 0, 0, 0],
}
QUICK = list(KINDS.values())[:8]  # widths take a compilation each
EACH = pytest.mark.parametrize("kind", slow_except(QUICK, KINDS.values()), ids=KINDS)
CLOSE = {"float32": {"rtol": 2e-5, "atol": 2e-5}, "float64": {"rtol": 1e-12, "atol": 1e-12}}


def _split(arguments):
    params = {name: arguments[name] for name in ("table", "weights") if name in arguments}
    return params, arguments


@EACH
@pytest.mark.parametrize("lengths", BAGS.values(), ids=BAGS)
def test_bags_agree_with_numpy(kind, lengths):
    arguments = kind.draw(lengths, np.random.default_rng(0))
    found = as_numpy(kind.forward()(*_split(arguments)))
    assert found.dtype == kind.dtype
    np.testing.assert_allclose(found, in_numpy(kind, arguments).bags, **CLOSE[kind.dtype])


@EACH
@pytest.mark.parametrize("lengths", BAGS.values(), ids=BAGS)
def test_cotangents_of_bags_agree_with_numpy(kind, lengths):
    arguments = kind.draw(lengths, np.random.default_rng(1))
    _, gradients = kind.program()(*_split(arguments))
    expected = in_numpy(kind, arguments)
    assert_row_sparse(gradients["table"], expected.table.astype(kind.dtype), **CLOSE[kind.dtype])
    if kind.weighted:
        weights = as_numpy(gradients["weights"])
        np.testing.assert_allclose(weights, expected.weights, **CLOSE[kind.dtype])


@EACH
def test_the_gradient_of_a_bag_is_not_expanded_to_its_ids(kind):
    arguments = kind.draw(BAGS["one long, the others empty"], np.random.default_rng(2))
    gradient = kind.program()(*_split(arguments))[1]["table"]
    assert gradient.nse == 300
    if kind.weighted:  # every id has its own factor, so its own row
        assert gradient.source is None and gradient.values.shape == (300, kind.width)
    else:
        assert gradient.source.shape == (300,) and gradient.values.shape == (6, kind.width)


@EACH
def test_the_indices_of_the_gradient_are_the_ids_in_order(kind):
    arguments = kind.draw(BAGS["uneven"], np.random.default_rng(3))
    gradient = kind.program()(*_split(arguments))[1]["table"]
    assert_same_bits(gradient.indices, arguments["ids"])


def test_an_empty_bag_is_zero_and_gives_no_gradient():
    kind = KINDS["mean"]
    arguments = kind.draw([0, 2, 0], np.random.default_rng(4))
    bags = as_numpy(kind.forward()(*_split(arguments)))
    assert not bags[[0, 2]].any() and bags[1].any()
    gradient = kind.program()(*_split(arguments))[1]["table"]
    assert (as_numpy(gradient.source) == 1).all()


def test_a_bag_of_one_is_the_row_itself():
    for kind in (KINDS["sum"], KINDS["mean"]):
        arguments = kind.draw([1] * 7, np.random.default_rng(5))
        bags = kind.forward()(*_split(arguments))
        assert_same_bits(bags, arguments["table"][arguments["ids"]][:, None])


def test_a_bag_is_summed_first_to_last():
    kind = KINDS["sum"]
    rng = np.random.default_rng(6)
    arguments = kind.draw([200], rng)
    arguments["table"] *= 10.0 ** rng.integers(-5, 5, arguments["table"].shape)
    rows = arguments["table"].astype("float32")[arguments["ids"]]
    arguments["table"] = arguments["table"].astype("float32")
    expected = dense_sum(np.zeros(200, int), rows, 1)
    assert_same_bits(kind.forward()(*_split(arguments)), expected[:, None])


def test_one_compile_serves_every_number_of_bags():
    kind, rng = KINDS["sum, 3 features"], np.random.default_rng(7)
    for bags in (3, 30, 6):
        arguments = kind.draw([2] * bags, rng)
        found = as_numpy(kind.forward()(*_split(arguments)))
        np.testing.assert_allclose(found, in_numpy(kind, arguments).bags, **CLOSE["float32"])


@pytest.mark.parametrize(
    "options",
    [{"mode": "max"}, {"mode": "mean", "weights": True}, {"mode": ("sum", "max"), "features": 2}],
)
def test_a_mode_that_does_not_exist_is_refused(options):
    variables = Kind(weighted=True)._variables()
    if options.pop("weights", False):
        options["weights"] = variables["weights"]
    table, ids, offsets = (variables[name] for name in ("table", "ids", "offsets"))
    with pytest.raises(ValueError, match="mode is 'sum', or 'mean' without weights"):
        embedding_bag(table, ids, offsets, **options)


# --- One id per row ------------------------------------------------------------------------------


def _lookup(shape: tuple, id_dtype: str, width: int) -> st.Program:
    """``sum(cotangent * lookup(table, ids))`` and its gradient, for ids of some rank."""
    letters = {letter: tvm.tirx.Var(letter, "int64") for letter in shape if isinstance(letter, str)}
    extents = [letters.get(extent, extent) for extent in shape]
    table = relax.Var("table", relax.TensorType((ROWS, width), "float32"))
    ids = relax.Var("ids", relax.TensorType(extents, id_dtype))
    cotangent = relax.Var("cotangent", relax.TensorType([*extents, width], "float32"))
    builder = relax.BlockBuilder()
    with builder.function("probe", [table, ids, cotangent]):
        with builder.dataflow():
            rows = builder.emit(lookup(table, ids))
            product = builder.emit(relax.op.multiply(rows, cotangent))
            loss = builder.emit_output(relax.op.sum(product))
        builder.emit_func_output(loss)
    return st.value_and_grad(builder.get(), "probe", ["table"])


@pytest.mark.parametrize(
    ("shape", "given", "id_dtype", "width"),
    [
        (("N",), (9,), "int32", 16),
        (("N",), (0,), "int64", 16),
        (("B", 3), (4, 3), "int64", 17),
        (("B", "L", 2), (3, 2, 2), "int32", 1),
        (("B", 1), (1, 1), "int32", 257),
    ],
    ids=["one axis", "no ids", "two axes", "three axes", "one id of a wide table"],
)
def test_a_lookup_reads_one_row_per_id_and_its_gradient_names_them(shape, given, id_dtype, width):
    rng = np.random.default_rng(8)
    table = rng.standard_normal((ROWS, width)).astype("float32")
    ids = rng.integers(0, ROWS, given).astype(id_dtype)
    cotangent = rng.standard_normal((*given, width)).astype("float32")
    program = _lookup(shape, id_dtype, width)
    loss, gradients = program({"table": table}, {"ids": ids, "cotangent": cotangent})
    exact = np.sum(table[ids] * cotangent.astype("float64"))
    np.testing.assert_allclose(as_numpy(loss), exact, rtol=1e-5, atol=1e-5)
    gradient = gradients["table"]
    assert_same_bits(gradient.indices, ids.reshape(-1))
    assert_same_bits(gradient.values, cotangent.reshape(-1, width))
    assert gradient.source is None
