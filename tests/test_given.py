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
    "patience": (lambda: st.EarlyStopping(patience="3"), "patience is '3'; it must be a whole num"),
    "no steps": (lambda: st.EarlyStopping(patience=True), "patience is True; it must be a whole"),
    "min_delta": (lambda: st.EarlyStopping(min_delta="a"), "min_delta is 'a'; it must be finite"),
    "every": (lambda: st.Run("run", every=2.5), "Run: every is 2.5; it must be a whole number"),
    "keep": (lambda: st.Run("run", keep=None), "Run: keep is None; it must be a whole number"),
    "encoder": (
        lambda: st.Trainer(small_dlrm.model(), st.optim.sgd(0.1), encoder="train.parquet"),
        "encoder is 'train.parquet'; give an Encoder, such as Encoder.fit(train)",
    ),
    "min_count": (lambda: st.data.Encoder.fit(RAW, min_count="5"), "min_count is '5'; it must be"),
    "weights": (lambda: st.data.Encoder.fit(RAW, weights=3), "weights is 3; give the name of a co"),
    "schema": (
        lambda: st.data.Encoder.fit(RAW, schema_file={"label": "y"}),
        "schema_file is {'label': 'y'}; give a Schema, or the path of a file",
    ),
    "row_weights": (lambda: st.models.DLRM([5], row_weights="w"), "row_weights is 'w'; give True"),
    "folder": (lambda: st.load(None), "folder is None; give the path of a folder"),
    "folder to predict": (lambda: st.load_predictor(5, which="latest"), "folder is 5; give the"),
    "folder to save in": (lambda: small_dlrm.trainer().save(None), "folder is None; give the"),
    "folder of a run": (lambda: st.Run(True), "folder is True; give the path of a folder"),
    "which": (lambda: st.load("run", which=None), "which is None; it must be 'latest'"),
}


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
    groups = [st.optim.Group("top.*", scale=tenth, weight_decay=tenth)]
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
    assert st.load(tmp_path / "run")._state.plan["batch_size"] == 16


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
        st.data.Encoder.fit(table, schema_file=schema)


def test_a_model_says_its_sizes():
    assert repr(small_dlrm.model()) == "<DLRM: 3 tables of 77 rows x 8, bottom [16], top [16]>"
