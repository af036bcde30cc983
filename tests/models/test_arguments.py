# SPDX-License-Identifier: Apache-2.0
"""Unknown options and layers without width are refused by name, wherever they are given."""

from typing import get_args

import pandas as pd
import pytest

import sparsetrain as st
from sparsetrain.cli import main
from sparsetrain.errors import ConfigError
from sparsetrain.models import MODELS, options_of
from sparsetrain.models.arguments import constructor_of
from sparsetrain.models.click_model import ClickModel
from sparsetrain.sklearn import ClickClassifier, Ranker

ROWS = {"user": 5, "item": 9, "history": 9}


def made(cls, **options):
    if not issubclass(cls, ClickModel):
        graph = {"interactions": 1} if cls is st.models.LightGCN else {}
        return cls(ROWS, **graph, **options)
    return cls(rows=[5, 6], num_dense=2, labels={"a": "binary", "b": "binary"}, **options)


OF_WIDTH = [
    (kind, name)
    for kind, cls in MODELS.items()
    for name, option in options_of(cls).items()
    if int in (option.type, *get_args(option.type))
]


@pytest.mark.parametrize("kind, name", OF_WIDTH, ids=lambda value: value)
def test_a_layer_of_width_0_is_refused_by_its_name(kind, name):
    cls = MODELS[kind]
    value = [0] if "Sequence" in str(options_of(cls)[name].type) else 0
    with pytest.raises(ConfigError, match=f"^{cls.__name__}: .*{name}.* 1 or more"):
        made(cls, **{name: value})


LAYERS = {
    "SelfAttention: dim": lambda: st.models.SelfAttention(0),
    "SelfAttention: heads": lambda: st.models.SelfAttention(4, 0),
    "TransformerBlock: hidden": lambda: st.models.TransformerBlock(4, hidden=0),
    "BatchNorm: width": lambda: st.models.BatchNorm(0),
    "MLP: each of widths": lambda: st.models.MLP([4, 0, 1], last_relu=False),
}


@pytest.mark.parametrize("name", LAYERS)
def test_so_is_one_that_is_used_alone(name):
    with pytest.raises(ConfigError, match=f"{name} is 0; it must be 1 or more"):
        LAYERS[name]()


class Unread:
    """Data that must not be looked at."""

    def __getattr__(self, name):
        raise AssertionError(name)


PLACES = {
    "a model": lambda: st.models.DeepFM([5, 6], hiden=[4]),
    "a model of columns": lambda: st.models.TwoTowers(ROWS, hiden=[4]),
    "a classifier": lambda: ClickClassifier("deepfm", model_options={"hiden": [4]}).fit(
        Unread(), Unread()
    ),
    "a ranker": lambda: Ranker("two_towers", model_options={"hiden": [4]}).fit(Unread()),
}


@pytest.mark.parametrize("place", PLACES)
def test_a_typo_is_refused_with_the_nearest_option_before_data_are_read(place):
    with pytest.raises(ConfigError, match="has no option 'hiden'; did you mean 'hidden'"):
        PLACES[place]()


def test_a_typo_in_a_command_is_refused_before_data_are_read(capsys):
    command = ["train", "there-is-no-such-file.parquet", "--model", "deepfm"]
    assert main([*command, "--set", "model.hiden=[4]"]) == 2
    assert "did you mean 'model.hidden'" in capsys.readouterr().err


def test_an_argument_of_the_estimator_is_no_option_of_its_model():
    with pytest.raises(ConfigError, match="model_options has 'dim'"):
        Ranker(model_options={"dim": 4}).fit(Unread())


def test_options_of_ones_own_model_are_those_of_its_signature():
    class Own(st.models.BPR):
        def __init__(self, rows, dim=8, colour="red"):
            super().__init__(rows, dim)

    log = pd.DataFrame({"user": [1, 1, 2], "item": [1, 2, 3]})
    with pytest.raises(ConfigError, match="Own has no option 'color'; did you mean 'colour'"):
        Ranker(Own, model_options={"color": "blue"}).fit(log)


@pytest.mark.parametrize("model", st.models.MODELS.values(), ids=st.models.MODELS)
def test_an_inherited_constructor_has_its_own_parameters_on_every_python(model):
    named = constructor_of(model).parameters
    assert "self" not in named and "args" not in named
    assert {"rows", "columns"} & named.keys()
