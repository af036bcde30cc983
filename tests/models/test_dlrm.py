# SPDX-License-Identifier: Apache-2.0
"""DLRM: what it refuses, what a batch becomes, and its loss against NumPy."""

import numpy as np
import pytest

from sparsetrain.data import Batch, Ragged
from sparsetrain.errors import ConfigError, DataError
from sparsetrain.models import DLRM
from sparsetrain.runtime import as_numpy
from sparsetrain.sparse_tensor import RowSparse
from tests import small_dlrm
from tests.helpers import assert_same_bits
from tests.models.interactions import cross_in_numpy, in_numpy, mlp_in_numpy


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"rows": []}, "DLRM: rows is empty; it takes at least one table"),
        ({"rows": [5, 0]}, r"every number in rows must be 1 or more: \[5, 0\]"),
        ({"rows": [5], "top": [-1]}, r"every number in top must be 1 or more: \[-1\]"),
        ({"rows": [5.5]}, r"rows must be whole numbers, not \[5.5\]"),
        ({"rows": 5}, "rows must be whole numbers, not 5; give a list"),
        ({"rows": [5], "bottom": ["64"]}, r"bottom must be whole numbers, not \['64'\]"),
        ({"rows": [5], "pooling": "max"}, "pooling must be None, 'sum' or 'mean'"),
        ({"rows": [5], "weighted": True}, "weighted bags need pooling='sum'"),
        ({"rows": [5], "pooling": "mean", "weighted": True}, "weighted bags need pooling='sum'"),
        ({"rows": [5, 6], "names": ["a"]}, "1 names for 2 tables"),
        ({"rows": [5, 6], "names": ["a", "a"]}, "DLRM: names has 'a' twice"),
        (
            {"rows": [5], "interaction": "cros"},
            "interaction must be 'dot', 'cross' or 'concat', not 'cros'",
        ),
        ({"rows": [5], "cross_rank": 4}, "cross_rank is for interaction='cross'; 'dot' has no"),
    ],
)
def test_a_configuration_that_cannot_be_is_refused(arguments, message):
    with pytest.raises(ConfigError, match=message):
        DLRM(**arguments)


def test_widths_may_come_from_an_iterator():
    given = DLRM([5, 3], bottom=(width for width in [8, 4]), top=iter([16])).config()
    assert (given["bottom"], given["top"]) == ([8, 4], [16])


def test_its_configuration_makes_the_same_model_again():
    model = DLRM(rows=np.array([50, 7]), dim=np.int64(8), bottom=(), top=(4, 3), pooling="mean")
    again = DLRM(**model.config())
    assert again.config() == model.config()
    shapes = [{n: tuple(p.shape) for n, p in m.named_parameters()} for m in (model, again)]
    assert shapes[0] == shapes[1]
    assert shapes[0]["embeddings.width8.weight"] == (57, 8)
    assert shapes[0]["top.layers.0.weight"] == (4, 8 + 3)


@pytest.mark.parametrize(("dim", "rank"), [(16, 108), (128, 512), (1, 6)])
def test_cross_layers_are_three_of_a_quarter_of_their_numbers_and_no_more_than_mlperfs(dim, rank):
    model = DLRM(rows=[5] * 26, dim=dim, interaction="cross")
    assert DLRM(**model.config()).config() == model.config()
    shapes = {name: tuple(param.shape) for name, param in model.named_parameters()}
    assert shapes["interaction.layers.2.v.weight"] == (rank, 27 * dim)
    assert shapes["interaction.layers.2.w.weight"] == (27 * dim, rank)
    assert shapes["top.layers.0.weight"] == (64, 27 * dim)
    assert not any(name.startswith("interaction.layers.3") for name in shapes)


def test_more_than_two_billion_rows_need_int64_ids_and_no_memory_before_training():
    module = DLRM(rows=[2**31, 3], dim=2).export()
    ids = {param.name: str(param.ty.dtype) for param in module["loss"].params}["rows"]
    assert ids == "int64"


# --- What a batch becomes -------------------------------------------------------------------------

SINGLE = DLRM(rows=[5, 4], dim=4, num_dense=2)
BAGS = DLRM(rows=[5, 4], dim=4, num_dense=2, pooling="sum")
WEIGHTED = DLRM(rows=[5, 4], dim=4, num_dense=2, pooling="sum", weighted=True)
DENSE = np.array([[0.5, 1], [2, 3]], "f4")


def test_single_ids_become_rows_of_the_storage():
    inputs = SINGLE.inputs(Batch(DENSE, [[0, 1], [4, 3]], [0, 1]))
    assert inputs.keys() == {"dense", "rows", "labels"}
    assert_same_bits(inputs["dense"], DENSE)
    assert_same_bits(inputs["rows"], np.array([[4, 1], [8, 3]], "int32"))
    assert_same_bits(inputs["labels"], np.array([0, 1], "f4"))


def test_bags_become_rows_and_offsets_one_feature_after_the_other():
    inputs = BAGS.inputs(Batch(DENSE, [Ragged([0, 4, 2], [0, 2, 3]), Ragged([3], [0, 1, 1])]))
    assert inputs.keys() == {"dense", "rows", "offsets"}
    assert_same_bits(inputs["rows"], np.array([4, 8, 6, 3], "int32"))
    assert_same_bits(inputs["offsets"], np.array([0, 2, 3, 4, 4]))


def test_weights_come_with_their_bags():
    bags = [Ragged([0, 4, 2], [0, 2, 3], [1, 2, 3]), Ragged([3], [0, 1, 1], [4])]
    inputs = WEIGHTED.inputs(Batch(DENSE, bags))
    assert_same_bits(inputs["weights"], np.array([1, 2, 3, 4], "f4"))


def test_a_model_of_bags_takes_single_ids_as_bags_of_one():
    inputs = BAGS.inputs(Batch(DENSE, [[0, 1], [4, 3]]))
    assert_same_bits(inputs["rows"], np.array([4, 8, 1, 3], "int32"))
    assert_same_bits(inputs["offsets"], np.arange(5))


ONE, WEIGHED = Ragged([0], [0, 1, 1]), Ragged([0], [0, 1, 1], [1])
# Error -> model, dense features and ids of a batch that does not fit, and what is said.
MISFITS = {
    DataError: [
        (SINGLE, DENSE, [[0, 0], [0, 4]], "row 1, feature C2: id 4 is outside its table"),
        (SINGLE, DENSE, [[0], [0]], "the batch has 1 categorical features, the model 2"),
        (SINGLE, DENSE[:, :1], [[0, 0]] * 2, "has 1 dense features, the model 2"),
        (BAGS, DENSE, [ONE, Ragged([1, 4], [0, 1, 2])], "row 1, feature C2: id 4 is outside its"),
    ],
    ConfigError: [
        (SINGLE, DENSE, [ONE, ONE], "takes one id per feature"),
        (BAGS, DENSE, [WEIGHED] * 2, "has per-sample weights, but the model's weighted is False"),
        (WEIGHTED, DENSE, [ONE] * 2, "lacks per-sample weights, but the model's weighted is True"),
        (WEIGHTED, DENSE, [WEIGHED, ONE], "for all features of a batch or none"),
    ],
}


@pytest.mark.parametrize(
    ("error", "model", "dense", "ids", "message"),
    [(error, *case) for error, cases in MISFITS.items() for case in cases],
)
def test_a_batch_that_does_not_fit_is_refused(error, model, dense, ids, message):
    with pytest.raises(error, match=message):
        model.inputs(Batch(dense, ids))


# --- The model ------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["single", "weighted", "cross"])
def test_the_loss_is_that_of_the_model_in_numpy(kind):
    trainer, batch = small_dlrm.trainer(kind), small_dlrm.batch(23, kind=kind)
    loss, _ = trainer.program(trainer.params, trainer.model.inputs(batch))
    params = trainer.state_dict()
    assert float(as_numpy(loss)) == pytest.approx(_loss(params, batch, kind), rel=1e-5)
    probability = 1 / (1 + np.exp(-_logits(params, batch, kind)))
    np.testing.assert_allclose(trainer.predict(batch), probability, rtol=1e-4)


def test_gradients_of_cross_layers_and_all_around_them_are_numpys_central_differences():
    trainer, batch = small_dlrm.trainer("cross"), small_dlrm.batch(23)
    _, gradients = trainer.program(trainer.params, trainer.model.inputs(batch))
    assert isinstance(gradients["embeddings.width8.weight"], RowSparse)
    found = _by_table(trainer.model, gradients)
    params = {n: a.astype("f8") for n, a in trainer.state_dict().items() if n in found}
    rng = np.random.default_rng(1)
    for name, gradient in found.items():
        direction = rng.standard_normal(gradient.shape) * 1e-6
        ahead, behind = (
            _loss({**params, name: params[name] + sign * direction}, batch, "cross")
            for sign in (1, -1)
        )
        slope = (gradient * direction).sum()
        assert slope == pytest.approx((ahead - behind) / 2, rel=1e-4, abs=1e-11), name


def _by_table(model: DLRM, gradients: dict) -> dict[str, np.ndarray]:
    found = {n: as_numpy(g) for n, g in gradients.items() if not isinstance(g, RowSparse)}
    for storage, tables in model.tables().items():
        rows = gradients[storage].to_scipy().toarray()
        found |= {f"embeddings.{table}.weight": rows[part] for table, part in tables.items()}
    return found


def _loss(params: dict[str, np.ndarray], batch: Batch, kind: str) -> float:
    logits = _logits(params, batch, kind)
    return np.logaddexp(0, np.where(batch.labels == 1, -logits, logits)).mean()


def _logits(params: dict[str, np.ndarray], batch: Batch, kind: str) -> np.ndarray:
    x = mlp_in_numpy(params, "bottom", batch.dense.astype("f8"), last_relu=True)
    features = range(len(small_dlrm.ROWS))
    tables = [params[f"embeddings.C{f + 1}.weight"].astype("f8") for f in features]
    if kind == "weighted":
        e = [_pooled(table, batch.ids[f]) for f, table in enumerate(tables)]
    else:
        e = [table[batch.ids[:, f]] for f, table in enumerate(tables)]
    met = (
        _crossed(params, x, np.stack(e, axis=1)) if kind == "cross" else in_numpy(x, np.stack(e, 1))
    )
    return mlp_in_numpy(params, "top", met, last_relu=False)[:, 0]


def _crossed(params: dict[str, np.ndarray], x: np.ndarray, e: np.ndarray) -> np.ndarray:
    parts = ("v.weight", "w.weight", "w.bias")
    numbers = range(small_dlrm.KINDS["cross"]["cross_layers"])
    return cross_in_numpy(
        [[params[f"interaction.layers.{n}.{part}"] for part in parts] for n in numbers], x, e
    )


def _pooled(table: np.ndarray, bags: Ragged) -> np.ndarray:
    parts = np.split(np.arange(len(bags.ids)), bags.offsets[1:-1])
    return np.stack([bags.weights[part] @ table[bags.ids[part]] for part in parts])
