# SPDX-License-Identifier: Apache-2.0
"""Negatives are items: never rows of missing or rare values, nor those behind the encoder's."""

import numpy as np
import pandas as pd
import pytest

import sparsetrain as st
from sparsetrain.data import ColumnRule, Schema
from sparsetrain.errors import ConfigError
from sparsetrain.models import BPR, HSTU, BERT4Rec, SASRec, TwoTowers
from sparsetrain.models.draws import Draws

LISTS = {"item": ColumnRule(share_embedding="history")}
MODELS = {
    "BPR": lambda rows: BPR(rows, dim=2),
    "BPR, seen": lambda rows: BPR(rows, dim=2, history="history"),
    "SASRec": lambda rows: SASRec(rows, dim=2, blocks=1),
    "HSTU": lambda rows: HSTU(rows, dim=2, blocks=1, ages=False),
}
FRAME = pd.DataFrame(
    {
        "user": [1, 2, 3, 4] * 50,
        "history": [["a", None, "b"], ["c"], ["b", "a"], ["rare"]] * 49 + [["a"]] * 4,
        "item": ["c", None, "c", "a"] * 49 + [f"rare {n}" for n in range(4)],
    }
)


def encoder_of(frame, **options):
    schema = Schema(categories=("user", "history", "item"), columns=LISTS)
    return st.data.Encoder.fit(frame, schema=schema, **options)


def drawn(made, encoder, batch, more=0):
    """A model's negatives for a batch; its item table has some rows more than the encoder."""
    rows = dict(zip(encoder.columns, encoder.rows, strict=True))
    model = made({**rows, "item": rows["item"] + more, "history": rows["history"] + more})
    model.bind(encoder)
    features = {name: model.read(name, batch) for name in model.features}
    found = model.prepare(features, Draws(seed=1, step=2))["negative"]
    return getattr(found, "ids", found)


@pytest.mark.parametrize("more", [0, 5])
@pytest.mark.parametrize("name", MODELS)
def test_negatives_are_items(name, more):
    encoder = encoder_of(FRAME, min_count=20, treat_as="raw")
    values = encoder.values("item")
    assert sorted(filter(None, values)) == ["a", "b", "c", "rare"]
    found = drawn(MODELS[name], encoder, encoder.encode(FRAME, require_label=False), more)
    assert {*np.unique(found)} <= {*range(2, len(values))}
    assert len({*found}) > 1


@pytest.mark.parametrize("name", MODELS)
def test_of_encoded_data_every_id_is_an_item(name):
    frame = FRAME.assign(history=[[0, 1], [2]] * 100, item=[1, 2] * 100)
    encoder = encoder_of(frame, treat_as="encoded")
    found = drawn(MODELS[name], encoder, encoder.encode(frame, require_label=False))
    assert {*found} == {0, 1, 2}


@pytest.mark.parametrize("name", [*MODELS, "BERT4Rec", "TwoTowers"])
def test_items_that_are_all_rare_are_refused(name):
    frame = FRAME[:4].assign(item=["x", "y", "z", "w"], history=[[]] * 4)
    encoder = encoder_of(frame, min_count=2, treat_as="raw")
    rows = dict(zip(encoder.columns, encoder.rows, strict=True))
    model = {**MODELS, "BERT4Rec": BERT4Rec, "TwoTowers": TwoTowers}[name](rows)
    model.bind(encoder)
    with pytest.raises(ConfigError, match="no item has a row of its own, .* lower min_count"):
        model.item_range()


@pytest.mark.slow
def test_two_towers_take_no_missing_or_rare_item_of_another_row_as_negative():
    encoder = encoder_of(FRAME, min_count=20, treat_as="raw")
    rows = dict(zip(encoder.columns, encoder.rows, strict=True))
    model = TwoTowers(rows, dim=2, hidden=(2,))
    trainer = st.Trainer(model, st.optim.sgd(0.1), encoder=encoder, target="cpu")
    wanted = [*"abca", None, None, "other", "rare 1"]
    batch = FRAME[:8].assign(item=wanted)
    scores = trainer.query_vectors(batch).astype("f8") @ trainer.item_vectors().T
    ids = trainer.model.read("item", encoder.encode(batch, require_label=False))
    losses = []
    for row, own in enumerate(ids):
        others = [scores[row, other] for other in ids if other != own and other >= 2]
        losses.append(np.logaddexp.reduce([scores[row, own], *others]) - scores[row, own])
    found = float(trainer.step(encoder.encode(batch, require_label=False)))
    assert found == pytest.approx(np.mean(losses), rel=1e-5)
