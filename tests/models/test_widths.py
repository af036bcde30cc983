# SPDX-License-Identifier: Apache-2.0
"""Features with widths and poolings of their own: scores and gradients are the equations'."""

import numpy as np
import pytest
import tvm_ffi
from tvm.relax.frontend import nn

import sparsetrain as st
from sparsetrain.errors import ConfigError
from sparsetrain.models import DLRM, ClickModel
from tests import small_dlrm
from tests.helpers import slow_except
from tests.models.equations import CASES
from tests.models.test_field_models import made

# C1 and C3 have one storage, C2 between them another.
DIM = {"C2": 7, "*": 4}
NAMES = [name for name in CASES if name != "lr"]
QUICK = ("deepfm", "widedeep", "dcnv2", "dlrm, dot")
EACH = pytest.mark.parametrize("name", slow_except(QUICK, NAMES))
KINDS = {"single": {}, "mean": {"pooling": {"C1": "mean", "C2": "mean"}}}


def trainer_of(name, kind="single"):
    model = made(name, dim=DIM, **KINDS[kind])
    return st.Trainer(model, st.optim.sgd(0.1), seed=2)


def exact(arrays):
    return {key: array.astype(np.float64) for key, array in arrays.items()}


@EACH
@pytest.mark.parametrize("kind", KINDS)
def test_scores_are_those_of_the_equations(name, kind):
    trainer, batch = trainer_of(name, kind), small_dlrm.batch(9, kind=kind)
    wanted = CASES[name][1](exact(trainer.state_dict()), trainer.model.config(), batch)
    np.testing.assert_allclose(trainer._score(batch)[:, 0], wanted, rtol=1e-5, atol=1e-5)


@EACH
@pytest.mark.parametrize("kind", KINDS)
def test_a_step_goes_down_the_gradient_of_the_equations(name, kind):
    trainer, batch = trainer_of(name, kind), small_dlrm.batch(9, kind=kind)
    config, before = trainer.model.config(), exact(trainer.state_dict())
    trainer.step(batch)
    step = {key: (before[key] - value) / 0.1 for key, value in trainer.state_dict().items()}

    def loss(params):
        logits = CASES[name][1](params, config, batch)
        return np.mean(np.logaddexp(0, logits) - batch.labels.reshape(-1) * logits)

    rng = np.random.default_rng(0)
    for key in before:
        way = rng.normal(size=before[key].shape)
        moved = [loss({**before, key: before[key] + h * way}) for h in (1e-5, -1e-5)]
        wanted = (moved[0] - moved[1]) / 2e-5
        assert (step[key] * way).sum() == pytest.approx(wanted, rel=2e-3, abs=2e-5), key


def test_equal_widths_are_one_width_and_the_same_program():
    one, other = (small_model(dim) for dim in (8, {"C1": 8, "C2": 8, "C3": 8}))
    assert one.config() == other.config()
    assert tvm_ffi.structural_equal(one.export(), other.export(), map_free_vars=True)
    pooled = small_model(8, pooling={"C2": "sum", "*": "sum"})
    assert pooled.config() == small_model(8, pooling="sum").config()


def small_model(dim, **more):
    return DLRM([5, 6, 7], dim=dim, bottom=[4], top=[4], **more)


def test_tables_of_one_width_share_a_storage():
    model = small_model(DIM)
    shapes = {name: tuple(p.shape) for name, p in model.named_parameters() if "width" in name}
    assert shapes == {
        "embeddings.width4.weight": (12, 4),
        "embeddings.width7.weight": (6, 7),
        "projections.width4.weight": (7, 4),
    }
    assert model.config()["dim"] == {"*": 4, "C2": 7}
    assert small_model(model.config()["dim"]).config() == model.config()


def test_features_that_share_a_table_have_its_width():
    model = DLRM([5, 6, 5], dim={"C1": 4}, share_embedding={"C3": "C1"})
    assert model.widths.features == (4, 16, 4)


class Flat(ClickModel):
    def __init__(self, rows, dim=3, **rest):
        super().__init__(rows, dim, **rest)
        self.last = nn.Linear(self.flat_width, 1)

    def forward(self, dense, embedded):
        flat = nn.op.reshape(embedded, (dense.shape[0], self.embedded_width))
        return self.last(nn.op.concat([dense, flat], dim=1))


class SideBySide(Flat):
    takes_any_width = True


@pytest.mark.parametrize(("cls", "width"), [(Flat, 3 * 9), (SideBySide, 9 + 3 + 3)])
def test_a_model_of_ones_own_gets_one_width_unless_it_takes_any(cls, width):
    trainer = st.Trainer(cls([50, 20, 7], dim={"C1": 9}, num_dense=13), st.optim.sgd(0.1))
    assert trainer.model.embedded_width == width
    batch = small_dlrm.batch(9)
    trainer.step(batch)
    assert trainer._score(batch).shape == (9, 1)


def test_numbers_as_vectors_are_as_wide_as_features_without_a_name():
    options = {"num_dense": 2, "numbers": "periodic"}
    for kind, wide in (("dcn", 4), ("deepfm", 7)):
        model = st.models.MODELS[kind]([5, 6, 7], dim=DIM, **options)
        assert model.numbers.bias.shape[1] == wide + (kind == "deepfm")
        trainer = st.Trainer(model, st.optim.sgd(0.1))
        trainer.step(st.Batch(np.ones((4, 2), "f4"), np.zeros((4, 3), int), np.ones(4)))


REFUSED = {
    "an unknown feature": (
        {"dim": {"users": 8}, "names": ["user", "item", "shop"]},
        "DLRM: dim: there is no feature 'users'; did you mean 'user'",
    ),
    "a width of 0": ({"dim": {"C1": 0}}, "DLRM: dim of 'C1' is 0; it must be 1 or more"),
    "a width in text": ({"dim": {"C1": "8"}}, "dim of 'C1' is '8'; it must be a whole number"),
    "two widths of a table": (
        {"dim": {"C1": 8, "C3": 9}, "share_embedding": {"C3": "C1"}},
        "dim of 'C3' is 9, but it shares the table of C1, which is 8 wide: set it for C1 only",
    ),
    "an unknown feature that is pooled": (
        {"pooling": {"C4": "mean"}},
        "DLRM: pooling: there is no feature 'C4'; there are C1, C2, C3",
    ),
    "an unknown pooling": (
        {"pooling": {"C1": "max"}},
        "pooling of 'C1' must be 'sum' or 'mean', not",
    ),
    "no pooling": ({"pooling": {"C1": None}}, "pooling of 'C1' must be 'sum' or 'mean', not None"),
    "a weighted mean": (
        {"pooling": {"C1": "mean"}, "weighted": True},
        "DLRM: weighted bags need pooling='sum'",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_widths_and_poolings_that_cannot_be_are_refused(case):
    options, said = REFUSED[case]
    with pytest.raises(ConfigError, match=said):
        DLRM([5, 6, 5], **options)


@pytest.mark.parametrize("interaction", ["dot", "concat", "cross"])
def test_vectors_of_numbers_go_through_the_bottom_mlp_of_dlrm(interaction):
    options = {"num_dense": 3, "numbers": "periodic", "number_bins": [[], []]}
    model = small_model(DIM, interaction=interaction, **options)
    trainer = st.Trainer(model, st.optim.sgd(0.1))
    trainer.step(st.Batch(np.ones((4, 3), "f4"), np.zeros((4, 3), int), np.ones(4)))
    width = 7 if interaction == "dot" else 4
    assert trainer.state_dict()["bottom.layers.0.weight"].shape == (4, 2 * width + 1)
