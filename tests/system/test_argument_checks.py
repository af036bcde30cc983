# SPDX-License-Identifier: Apache-2.0
"""Arguments of another type are refused in one line that says what to give."""

import re
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest

import sparsetrain as st
from sparsetrain.errors import ConfigError, DataError
from tests import small_dlrm

# What is asked of `fit` -> what is said.
OF_FIT = {
    "stop": (True, "stop is True; give a function without arguments"),
    "progress": (False, "progress is False; give 'auto', None or an object with start, advance"),
    "run": (5, "run is 5; give a Run, or the path of its folder"),
    "validate_every": (2.0, "validate_every is 2.0; it must be a whole number"),
    "early_stopping": (3, "early_stopping is 3; give an EarlyStopping, such as EarlyStopping(pat"),
}


@pytest.mark.parametrize("call", ["start", "advance", "note", "finish"])
def test_a_progress_that_lacks_a_call_is_refused_before_it_is_needed(call):
    lacking = SimpleNamespace(start=print, advance=print, note=print, finish=print)
    delattr(lacking, call)
    with pytest.raises(ConfigError, match="an object with start, advance, note, finish"):
        small_dlrm.trainer().fit([small_dlrm.batch(8)], progress=lacking)


@pytest.mark.parametrize("name", OF_FIT)
def test_fit_refuses_arguments_of_another_type_and_trains_nothing(name):
    value, said = OF_FIT[name]
    trainer, data = small_dlrm.trainer(encoder=small_dlrm.encoder()), small_dlrm.raw_rows(32)
    with pytest.raises(ConfigError, match=re.escape(said)):
        trainer.fit(data, validation=data, **{"progress": None, name: value})
    assert trainer.steps == 0


RAW = small_dlrm.raw_rows(32)
# What is called -> what is said.
CALLS = {
    "every": (lambda: st.Run("run", every=2.5), "Run: every is 2.5; it must be a whole number"),
    "keep": (lambda: st.Run("run", keep=None), "Run: keep is None; it must be a whole number"),
    "seed": (lambda: st.models.DLRM([5]).initialize(None), "seed is None; it must be a whole num"),
    "min_delta": (lambda: st.EarlyStopping(min_delta="a"), "min_delta is 'a'; it must be finite"),
    "encoder": (
        lambda: st.Trainer(small_dlrm.model(), st.optim.sgd(0.1), encoder="train.parquet"),
        "encoder is 'train.parquet'; give an Encoder, such as Encoder.fit(train)",
    ),
    "min_count": (lambda: st.data.Encoder.fit(RAW, min_count="5"), "min_count is '5'; it must be"),
    "weights": (lambda: st.data.Encoder.fit(RAW, weights=3), "weights is 3; give the name of a co"),
    "schema": (
        lambda: st.data.Encoder.fit(RAW, schema={"label": "y"}),
        "schema is {'label': 'y'}; give a Schema, or the path of a file",
    ),
    "row_weights": (lambda: st.models.DLRM([5], row_weights="w"), "row_weights is 'w'; give True"),
    "folder": (lambda: st.load(None), "folder is None; give the path of a folder"),
    "folder to predict": (
        lambda: st.load_predictor(5, checkpoint="latest"),
        "folder is 5; give the",
    ),
    "folder to save in": (lambda: small_dlrm.trainer().save(None), "folder is None; give the"),
    "folder of a run": (lambda: st.Run(True), "folder is True; give the path of a folder"),
    "checkpoint": (
        lambda: st.load("run", checkpoint=None),
        "checkpoint is None; it must be 'latest'",
    ),
}


PARAMS = {"t": st.runtime.zeros((5, 4), "float32")}
STATE = st.optim.sgd(0.1).init(PARAMS, {"t": {"t": slice(0, 5)}})


def _batches(**options):
    dataset = st.data.Dataset([small_dlrm.batch(8)], None)
    return next(iter(dataset.batches(**{"batch_size": 4, **options})))


# Name, as errors say it -> the least number, what takes it, and what says so in words of its own.
WHOLE = {
    "DLRM: dim": (1, lambda n: st.models.DLRM([5], dim=n)),
    "DLRM: num_dense": (0, lambda n: st.models.DLRM([5], num_dense=n)),
    "DLRM: cross_layers": (1, lambda n: st.models.DLRM([5], interaction="cross", cross_layers=n)),
    "DLRM: cross_rank": (1, lambda n: st.models.DLRM([5], interaction="cross", cross_rank=n)),
    "seed": (0, lambda n: st.models.DLRM([5]).initialize(n)),
    "MLP: each of widths": (1, lambda n: st.models.MLP([3, n], last_relu=True)),
    "CrossInteraction: features": (1, lambda n: st.models.CrossInteraction(n, 4, 2, 2)),
    "CrossInteraction: layers": (1, lambda n: st.models.CrossInteraction(3, 4, n, 2)),
    "CrossInteraction: rank": (1, lambda n: st.models.CrossInteraction(3, 4, 2, n)),
    "EmbeddingBag: rows": (1, lambda n: st.embedding.EmbeddingBag(n, 4)),
    "EmbeddingBag: width": (1, lambda n: st.embedding.EmbeddingBag(4, n)),
    "EmbeddingBag: features": (1, lambda n: st.embedding.EmbeddingBag(4, 4, "sum", features=n)),
    "embedding_bag: features": (
        *(1, lambda n: st.embedding.embedding_bag(None, None, None, features=n)),
    ),
    "table 'a': rows": (1, lambda n: st.embedding.Table("a", n, 4)),
    "table 'a': width": (1, lambda n: st.embedding.Table("a", 4, n)),
    "accumulate": (
        *(1, lambda n: st.Trainer(small_dlrm.model(), st.optim.sgd(0.1), accumulate=n)),
    ),
    "epochs": (1, lambda n: small_dlrm.trainer().fit([small_dlrm.batch(8)], epochs=n)),
    "batch_size": (1, lambda n: _batches(batch_size=n)),
    "workers": (1, lambda n: _batches(workers=n)),
    "position: row": (0, lambda n: _batches(position=st.data.Position(0, n))),
    "set_num_threads: count": (1, st.set_num_threads),
    "max_rows": (1, lambda n: st.data.profile(RAW, max_rows=n)),
    "compare: rows": (1, lambda n: st.compare.Case(n)),
    "schedule warmup: steps": (1, st.optim.warmup),
    "patience": (1, lambda n: st.EarlyStopping(patience=n)),
    "Run: keep": (1, lambda n: st.Run("run", keep=n)),
}
NO_WHOLE = (True, 1.0, "3", float("nan"), [3])


@pytest.mark.parametrize("name", WHOLE)
def test_what_is_no_whole_number_is_refused_by_its_name(name):
    least, call = WHOLE[name]
    for value in NO_WHOLE:
        with pytest.raises(ConfigError) as raised:
            call(value)
        assert str(raised.value) == f"{name} is {value!r}; it must be a whole number"
    with pytest.raises(ConfigError) as raised:
        call(least - 1)
    assert str(raised.value) == f"{name} is {least - 1}; it must be {least} or more"


# What is called -> what is said of each of `NO_WHOLE` and of others.
NUMBERS = {
    "rows": (lambda n: st.models.DLRM([5, n]), "DLRM: rows must be whole numbers, not [5, "),
    "top": (lambda n: st.models.DLRM([5], top=(n,)), "DLRM: top must be whole numbers, not "),
    "a world's seed": (lambda n: st.data.SyntheticCriteo(seed=n), "seed is "),
    "a seed of noise": (lambda n: st.optim.sgd(0.1).init(PARAMS, seed=n), "seed is "),
    "beta": (
        lambda n: st.optim.ftrl(0.1, beta=-n if n == 1.0 and n is not True else n),
        "ftrl: beta must be finite and 0 or more, not ",
    ),
    "share": (lambda n: st.data.split_share(RAW, n), "; it must be a number between 0 and 1"),
    "position": (lambda n: _batches(position=[n]), "; give a Position, as Batch.position has it"),
    "weight": (
        lambda n: st.optim.accumulate_({}, {}, weight=n if n is True or n != 1.0 else float("inf")),
        "; it must be a finite number",
    ),
    "scale": (
        lambda n: st.optim.sgd(0.1).apply_(PARAMS, {}, STATE, scale=-1 if n == 1.0 else n),
        "optimizer: scale must be finite and above 0, not ",
    ),
}


@pytest.mark.parametrize("name", NUMBERS)
def test_numbers_of_other_kinds_are_refused_too(name):
    call, said = NUMBERS[name]
    for value in NO_WHOLE:
        with pytest.raises(ConfigError, match=re.escape(said)):
            call(value)


def test_whole_numbers_of_numpy_make_models_and_tables():
    eight, two = np.int64(8), np.int32(2)
    model = st.models.DLRM([5], dim=eight, interaction="cross", cross_layers=two, cross_rank=two)
    assert type(model.config()["dim"]) is int
    assert type(st.embedding.Table("a", eight, eight).rows) is int
    st.embedding.EmbeddingBagCollection([st.embedding.Table("a", eight, eight)])
    st.models.MLP([eight, two], last_relu=True)
    st.embedding.EmbeddingBag(eight, two, "sum", features=two)


def test_numpys_truth_values_are_as_good_as_pythons():
    config = st.models.DLRM([5], row_weights=np.True_).config()
    assert config["row_weights"] is True


@pytest.mark.parametrize("name", CALLS)
def test_other_calls_refuse_them_too(name):
    call, said = CALLS[name]
    with pytest.raises(ConfigError, match=re.escape(said)):
        call()


def test_floats_of_numpy_are_saved_as_pythons(tmp_path):
    tenth = np.float32(0.1)
    groups = [st.optim.ParamGroup("top.*", scale=tenth, weight_decay=tenth)]
    options = {"weight_decay": tenth, "clip_norm": tenth, "groups": groups}
    optimizer = st.optim.adagrad(tenth, initial=tenth, **options)
    st.Trainer(small_dlrm.model(), optimizer).save(tmp_path / "saved")
    assert st.load(tmp_path / "saved").optimizer == optimizer


def test_whole_numbers_of_numpy_are_whole_numbers_also_where_they_are_saved(tmp_path):
    trainer, data = small_dlrm.trainer(encoder=small_dlrm.encoder()), small_dlrm.raw_rows(32)
    trainer.fit(
        data,
        validation=data,
        epochs=np.int64(1),
        batch_size=np.int64(16),
        validate_every=np.int32(1),
        early_stopping=st.EarlyStopping(patience=np.int64(9), min_delta=np.float32(0)),
        run=st.Run(tmp_path / "run", every=np.int32(5)),
        progress=None,
    )
    assert st.load(tmp_path / "run").run_state.plan["batch_size"] == 16


# What an iterable of no batches holds -> what is said of its first item.
ITEMS = {
    "frames": (
        pd.DataFrame(RAW),
        r"is a DataFrame.*\(encoder.encode\(table\) for table in \.\.\.\)",
    ),
    "dicts": (RAW, r"is a dict.*\(encoder.encode\(table\) for table in"),
    "tuples": ((np.zeros((1, 13)), [[0]], [1]), r"is a tuple.*\(Batch\(\*arrays\) for arrays in"),
}


@pytest.mark.parametrize("kind", ITEMS)
def test_other_things_than_batches_are_told_how_to_become_some(kind):
    item, said = ITEMS[kind]
    with pytest.raises(DataError, match=f"item 0 {said}"):
        small_dlrm.trainer(encoder=small_dlrm.encoder()).fit(iter([item]), progress=None)


@pytest.mark.parametrize("make", [dict, pd.DataFrame])
def test_a_misspelt_column_is_told_the_nearest_of_all_there_are(make):
    schema = st.data.Schema(label="y", categories=("usr", "item"))
    table = make({"user": ["a", "b"], "item": [1, 2], "y": [0, 1]})
    with pytest.raises(DataError, match="column usr: .* the nearest name there is user"):
        st.data.Encoder.fit(table, schema=schema)


def test_a_model_says_its_sizes():
    assert repr(small_dlrm.model()) == "<DLRM: 3 tables of 77 rows x 8, bottom [16], top [16]>"
