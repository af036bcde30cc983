# SPDX-License-Identifier: Apache-2.0
"""Models over fields: their scores are those of the papers' equations in float64."""

import numpy as np
import pytest

import sparsetrain as st
from sparsetrain.errors import ConfigError
from tests import small_dlrm
from tests.helpers import slow_except
from tests.models import test_named_features as named_features
from tests.models import test_ranking_model
from tests.models.equations import CASES


def kind_of(name):
    return name.partition(",")[0]


def made(name, rows=small_dlrm.ROWS, num_dense=small_dlrm.NUM_DENSE, **more):
    options, _ = CASES[name]
    model = st.models.MODELS[kind_of(name)]
    return model(rows, num_dense=num_dense, **{"dim": 4, **options, **more})


def test_every_model_has_an_equation_or_is_among_those_of_named_features():
    others = (*named_features.MODELS, *test_ranking_model.MODELS)
    tested = {*map(kind_of, CASES)} | {model.kind for model in others}
    assert tested ^ st.models.MODELS.keys() == set()


QUICK = ("deepfm", "dcnv2, stacked, low rank")


@pytest.mark.parametrize("name", slow_except(QUICK, CASES))
def test_scores_are_those_of_the_equations(name):
    trainer = st.Trainer(made(name), st.optim.sgd(0.1), seed=2)
    batch = small_dlrm.batch(9)
    params = {key: array.astype(np.float64) for key, array in trainer.state_dict().items()}
    assert np.abs(params.get("bias", 0)).max() == 0
    _, equation = CASES[name]
    wanted = equation(params, trainer.model.config(), batch)
    found = trainer._score(batch)[:, 0]
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", CASES)
def test_a_config_makes_the_model_again_also_of_several_labels(name):
    labels = {"click": "binary", "price": "real"}
    model = made(name, rows=[5, 7], num_dense=0, labels=labels)
    again = type(model)(**model.config())
    assert again.config() == model.config()
    shapes = [{n: tuple(p.shape) for n, p in m.named_parameters()} for m in (model, again)]
    assert shapes[0] == shapes[1]
    assert model.export() is not None


@pytest.mark.parametrize(
    ("kind", "options", "said"),
    [
        ("deepfm", {"hidden": 0.5}, "DeepFM: hidden must be whole numbers"),
        ("deepfm", {"dropout": 1}, "DeepFM: dropout: rate is 1; it must be at least 0"),
        ("deepfm", {"batch_norm": 1}, "DeepFM: batch_norm is 1; give True or False"),
        ("dcnv2", {"structure": "both"}, "DCNv2: structure is 'both'; it must be 'parallel' or"),
        (
            "dcnv2",
            {"experts": 2},
            "DCNv2: several experts need layers of low rank: give cross_rank",
        ),
        ("xdeepfm", {"cin": [3, 0]}, "XDeepFM: every number in cin must be 1 or more"),
        ("finalmlp", {"heads": 7}, "heads is 7; it must divide both widths, 64"),
        ("finalmlp", {"hidden2": ()}, "FinalMLP: hidden and hidden2 need at least one width"),
        ("fm", {"dim": 0.5}, "FM: dim"),
    ],
)
def test_wrong_options_are_refused(kind, options, said):
    with pytest.raises(ConfigError, match=said):
        st.models.MODELS[kind]([3, 4], **options)


@pytest.mark.parametrize("name", ["lr", "deepfm"])
def test_vectors_and_weights_begin_small(name):
    params = made(name, rows=[3, 4000]).initialize(0)
    numbers = [p.numpy() for n, p in params.items() if n.startswith(("embeddings", "dense_fields"))]
    assert len(numbers) == 2 and all(0.008 < array.std() < 0.012 for array in numbers[:1])
    assert max(np.abs(array).max() for array in numbers) < 0.06
