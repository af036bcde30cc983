# SPDX-License-Identifier: Apache-2.0
"""Models made of the columns of an encoder."""

import pytest

import sparsetrain as st
from sparsetrain.cli.settings.resolve import resolve_settings
from sparsetrain.errors import DataWarning
from sparsetrain.sklearn import ClickClassifier

ROWS = {
    "label": [0, 1, 0],
    "price": [0.5, 1.5, 2.5],
    "user": [1, 2, 1],
    "tags": [["a"], [], ["b", "a"]],
    "history": [[3], [], [4]],
    "item": [3, 4, 3],
    "weight": [1.0, 2.0, 1.0],
}
SCHEMA = st.data.Schema(
    dense=("price",),
    categories=("user", "tags", "history", "item"),
    columns={"item": st.data.ColumnRule(share_embedding="history")},
    weights="weight",
)


@pytest.fixture(scope="module")
def encoder():
    return st.data.Encoder.fit(ROWS, schema=SCHEMA, min_count=1)


def test_a_click_model_takes_all_that_an_encoder_knows(encoder):
    config = st.models.DLRM.for_encoder(encoder, dim=4).config()
    assert config["rows"] == encoder.rows and config["num_dense"] == encoder.num_dense == 1
    assert config["names"] == ["user", "tags", "history", "item"]
    assert config["pooling"] == "sum" and config["row_weights"] and config["dim"] == 4
    assert config["share_embedding"] == {"item": "history"}


def test_any_other_model_takes_rows_by_name(encoder):
    sizes = dict(zip(encoder.columns, encoder.rows, strict=True))
    assert st.models.SASRec.for_encoder(encoder, dim=4).config()["rows"] == sizes


def test_a_model_that_reads_no_numbers_says_so(encoder):
    with pytest.warns(DataWarning, match="DIN reads no numbers, and ignores the column price: "):
        st.models.DIN.for_encoder(encoder)


def test_an_option_comes_before_what_the_encoder_knows(encoder):
    config = st.models.DLRM.for_encoder(encoder, pooling="mean").config()
    assert config["pooling"] == "mean"


@pytest.mark.parametrize("model", [st.models.DLRM, "dlrm"])
def test_a_trainer_makes_a_model_of_a_class_or_a_name(encoder, model):
    trainer = st.Trainer(model, "adam", encoder=encoder)
    assert trainer.model.config() == st.models.DLRM.for_encoder(encoder).config()
    assert (trainer.optimizer.formula.name, trainer.optimizer.hyper["lr"]) == ("adam", 0.02)


@pytest.mark.parametrize("model", [st.models.DLRM, "dlrm"])
def test_a_trainer_gives_a_class_or_a_name_its_options(encoder, model):
    wanted = st.models.DLRM.for_encoder(encoder, dim=8, interaction="concat").config()
    trainer = st.Trainer(model, encoder=encoder, dim=8, interaction="concat")
    assert trainer.model.config() == wanted


@pytest.mark.parametrize("spelt", ["widedeep", "wide_deep", "WideDeep", "wide-deep"])
def test_names_are_known_with_and_without_underscores(encoder, spelt):
    assert st.Trainer(spelt, encoder=encoder).model.kind == "widedeep"
    settings = resolve_settings(overrides=[f"model.name={spelt}", "model.hidden=[4]"])
    assert settings.model.name == "widedeep" and settings.model.hidden == (4,)
    assert ClickClassifier(spelt)._model()[0] is st.models.WideDeep


@pytest.mark.parametrize(
    ("model", "option", "said"),
    [
        ("dlrm", "dims", "DLRM has no option 'dims'; did you mean 'dim'?"),
        ("dlrm", "precison", "Trainer has no argument 'precison'; did you mean 'precision'?"),
        ("dlrm", "xyzzy", "DLRM has no option 'xyzzy'; its options are"),
        (st.models.DLRM([5]), "dim", "Trainer has no argument 'dim'; give options of the model"),
        (st.models.DLRM([5]), "sead", "Trainer has no argument 'sead'; did you mean 'seed'?"),
    ],
)
def test_an_unknown_option_is_told(encoder, model, option, said):
    with pytest.raises(st.errors.ConfigError, match=said):
        st.Trainer(model, encoder=encoder, **{option: 8})


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("lightgcn",), "LightGCN.for_encoder.encoder. fails: .*'interactions'; make the model"),
        (("dlmr",), "there is no model 'dlmr'; did you mean 'dlrm'"),
        (
            ("dlrm", "adan"),
            "optimizer is 'adan'; give one of sgd, momentum, .*; did you mean 'adam'",
        ),
    ],
)
def test_a_name_that_does_not_exist_is_told(encoder, arguments, said):
    with pytest.raises(st.errors.ConfigError, match=said):
        st.Trainer(*arguments, encoder=encoder)
