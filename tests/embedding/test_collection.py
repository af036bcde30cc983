# SPDX-License-Identifier: Apache-2.0
"""Features, tables and storages, and the rows that a stacked lookup reads."""

import numpy as np
import pytest
from tvm.relax.frontend import nn

import sparsetrain as st
from sparsetrain.data import Ragged
from sparsetrain.embedding import EmbeddingBag, EmbeddingBagCollection, Table
from sparsetrain.errors import ConfigError
from sparsetrain.runtime import as_numpy
from tests.helpers import assert_same_bits

RNG = np.random.default_rng(5)
# Two storages: a (5 rows), b (3) and unused (4) of width 8; wide (7 rows) of width 17.
TABLES = [Table("a", 5, 8), Table("wide", 7, 17), Table("unused", 4, 8), Table("b", 3, 8)]
FEATURES = ["b", "a", "wide", "a"]  # a is shared by two features


def collection(pooling=None, features=FEATURES) -> EmbeddingBagCollection:
    return EmbeddingBagCollection(TABLES, features, pooling)


def draw_ids(batch: int) -> np.ndarray:
    rows = {table.name: table.rows for table in TABLES}
    return RNG.integers(0, [rows[name] for name in FEATURES], (batch, len(FEATURES)))


def test_tables_of_one_width_are_stacked_in_one_storage_small_ones_first():
    assert collection().slices() == {
        "b": (8, slice(0, 3)),
        "unused": (8, slice(3, 7)),
        "a": (8, slice(7, 12)),
        "wide": (17, slice(0, 7)),
    }
    shapes = {name: tuple(p.shape) for name, p in collection().named_parameters()}
    assert shapes == {"width8.weight": (12, 8), "width17.weight": (7, 17)}


def test_by_default_every_table_has_one_feature():
    placement = EmbeddingBagCollection(TABLES[:1] + TABLES[2:]).placements[8]
    assert placement.features == (0, 1, 2)
    assert_same_bits(placement.first_rows, np.array([7, 3, 0]))


def test_ids_become_rows_of_the_storage_of_their_feature():
    ids = np.array([[0, 0, 6, 4], [2, 4, 0, 0]])
    located = collection().locate(ids)
    assert_same_bits(located[8][0], np.array([[0, 7, 11], [2, 11, 7]], "int32"))
    assert_same_bits(located[17][0], np.array([[6], [0]], "int32"))


def test_bags_become_rows_one_feature_after_the_other():
    bags = [Ragged([2, 0], [0, 2, 2]), Ragged([4], [0, 0, 1]), Ragged([], [0, 0, 0])]
    bags = [Ragged(np.array(b.ids, "int64"), b.offsets) for b in bags]
    located = collection("sum").locate([*bags, Ragged([1, 1, 3], [0, 3, 3])])
    rows, offsets = located[8]
    assert_same_bits(rows, np.array([2, 0, 11, 8, 8, 10], "int32"))
    assert_same_bits(offsets, np.array([0, 2, 2, 2, 3, 6, 6]))
    assert_same_bits(located[17][0], np.array([], "int32"))
    assert_same_bits(located[17][1], np.array([0, 0, 0]))


def test_weights_follow_their_ids():
    bags = [Ragged([1], [0, 1], [0.5]), Ragged([2, 0], [0, 2], [2.0, 3.0])]
    made = EmbeddingBagCollection([Table("x", 3, 4), Table("y", 3, 4)], pooling="sum")
    rows, _, weights = made.locate(bags)[4]
    assert_same_bits(rows, np.array([1, 5, 3], "int32"))
    np.testing.assert_array_equal(weights, [0.5, 2.0, 3.0])


def test_one_id_per_feature_may_be_given_where_bags_are_expected():
    ids = np.array([[0, 1, 2, 3], [2, 0, 6, 4]])
    rows, offsets = collection("mean").locate(ids)[8]
    assert_same_bits(rows, np.array([0, 2, 8, 7, 10, 11], "int32"))
    assert_same_bits(offsets, np.arange(7))


@pytest.mark.parametrize(
    ("tables", "features", "dtype"),
    [
        ([Table("a", 2**31 - 1, 4)], ["a"], "int32"),
        ([Table("a", 2**31, 4)], ["a"], "int64"),
        ([Table("a", 2**30, 4), Table("b", 2**30, 4)], ["a", "b"], "int64"),
        ([Table("a", 2**30, 4), Table("b", 2**30, 8)], ["a", "b"], "int32"),
        # A table counts once, whatever the number of its features, and also without any.
        ([Table("a", 2**30, 4)], ["a", "a", "a"], "int32"),
        ([Table("a", 2**31, 4), Table("b", 10, 4)], ["b"], "int64"),
    ],
)
def test_rows_are_int64_where_those_of_a_storage_do_not_fit_int32(tables, features, dtype):
    made = EmbeddingBagCollection(tables, features)
    assert made.placements[4].index_dtype == dtype
    rows = made.locate(np.array([[3] * len(features)]))[4][0]
    assert rows.dtype == dtype
    assert (rows == made.placements[4].first_rows + 3).all()


@pytest.mark.parametrize("pooling", [None, "sum", "mean"])
def test_a_stacked_lookup_reads_the_rows_of_each_features_table(pooling):
    made, ids = collection(pooling), draw_ids(6)
    params = {
        name: RNG.standard_normal([int(n) for n in p.shape]).astype("f4")
        for name, p in made.named_parameters()
    }
    for width, located in made.locate(ids).items():
        inputs = dict(zip(("ids", "offsets"), located, strict=False))
        weight = params[f"width{width}.weight"]
        found = as_numpy(_program(made.storage(width), inputs)({"weight": weight}, inputs))
        slices, used = made.slices(), made.placements[width].features
        tables = [weight[slices[FEATURES[f]][1]] for f in used]
        expected = [table[ids[:, f]] for table, f in zip(tables, used, strict=True)]
        assert_same_bits(found, np.stack(expected, axis=1))


def _program(storage: EmbeddingBag, inputs: dict[str, np.ndarray]) -> st.Program:
    letters = {"ids": ["B", "F"], "offsets": ["K"]}
    spec = {
        name: nn.spec.Tensor(letters[name][-array.ndim :], str(array.dtype))
        for name, array in inputs.items()
    }
    module, _ = storage.export_tvm({"forward": spec})
    return st.Program(module, "forward")


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: EmbeddingBagCollection([Table("a", 2, 4), Table("a", 3, 4)]),
            "table names must differ",
        ),
        (
            lambda: EmbeddingBagCollection(TABLES, ["a", "c"]),
            r"no table 'c'; there are \['a', 'wide', 'unused', 'b'\]",
        ),
        (
            lambda: EmbeddingBagCollection(TABLES, pooling="max"),
            "pooling must be None .*, not 'max'",
        ),
        (
            lambda: EmbeddingBagCollection([Table("a", 0, 4)]),
            "table 'a': rows is 0; it must be 1 or more",
        ),
        (lambda: EmbeddingBag(3, 0), "EmbeddingBag: width is 0; it must be 1 or more"),
    ],
)
def test_a_placement_that_cannot_be_is_refused(make, message):
    with pytest.raises(ConfigError, match=message):
        make()


def test_bags_for_a_model_of_single_ids_are_refused():
    with pytest.raises(ConfigError, match="takes one id per feature, .B, F.; the batch has bags"):
        collection().locate([Ragged([0], [0, 1])] * 4)


def test_weights_for_some_features_only_are_refused():
    bags = [Ragged([1], [0, 1], [0.5]), Ragged([0], [0, 1])]
    made = EmbeddingBagCollection([Table("x", 3, 4), Table("y", 3, 4)], pooling="sum")
    with pytest.raises(ConfigError, match="for all features of a batch or none"):
        made.locate(bags)


@pytest.mark.parametrize(
    ("pooling", "arguments", "message"),
    [
        (None, ("ids", "offsets"), "EmbeddingBag without pooling takes only ids"),
        ("sum", ("ids",), "EmbeddingBag with pooling needs offsets"),
    ],
)
def test_an_argument_that_the_pooling_has_no_use_for_is_refused(pooling, arguments, message):
    spec = {name: nn.spec.Tensor(["N"], "int64") for name in arguments}
    with pytest.raises(ConfigError, match=message):
        EmbeddingBag(3, 4, pooling).export_tvm({"forward": spec})


class _Shared(nn.Module):
    """One table of which bags are averaged and single ids looked up."""

    def __init__(self) -> None:
        self.item = EmbeddingBag(6, 4, pooling="mean")

    def loss(self, ids: nn.Tensor, bags: nn.Tensor, offsets: nn.Tensor) -> nn.Tensor:
        rows = self.item.lookup(ids)
        mean = nn.op.reshape(self.item(bags, offsets), (ids.shape[0], 4))
        return nn.op.sum(rows * mean)


def test_a_table_of_bags_is_looked_up_by_single_ids_too():
    vector = nn.spec.Tensor(["N"], "int64")
    lengths = {"bags": nn.spec.Tensor(["M"], "int64"), "offsets": nn.spec.Tensor(["O"], "int64")}
    module, _ = _Shared().export_tvm({"loss": {"ids": vector, **lengths}})
    table = RNG.normal(size=(6, 4)).astype("float32")
    inputs = {"ids": np.array([1, 5]), "bags": np.array([5, 0, 2]), "offsets": np.array([0, 2, 3])}
    loss, gradients = st.value_and_grad(module, "loss")({"item.weight": table}, inputs)
    means = np.stack([(table[5] + table[0]) / 2, table[2]])
    np.testing.assert_allclose(float(loss.numpy()), (table[[1, 5]] * means).sum(), rtol=1e-5)
    expected = np.zeros((6, 4))
    expected[[1, 5]] += means
    expected[[5, 0]] += table[1] / 2
    expected[2] += table[5]
    gradient = gradients["item.weight"]
    np.testing.assert_allclose(gradient.to_dense().numpy(), expected, rtol=1e-5, atol=1e-6)


def test_each_feature_has_a_pooling_of_its_own_in_one_storage():
    made = EmbeddingBagCollection(TABLES, FEATURES, ["sum", "mean", "mean", "mean"])
    assert made.storage(8).poolings == ("sum", "mean", "mean")
    assert made.storage(17).poolings == ("mean",)


@pytest.mark.parametrize(
    ("pooling", "message"),
    [
        (["sum", "max", "sum", "sum"], "EmbeddingBagCollection: pooling must be .*, not 'max'"),
        (["sum", None, "sum", "sum"], r"not \('sum', None, 'sum', 'sum'\)"),
        (["sum"], "EmbeddingBagCollection: 1 poolings for 4 features"),
    ],
)
def test_poolings_that_cannot_be_are_refused(pooling, message):
    with pytest.raises(ConfigError, match=message):
        collection(pooling)
