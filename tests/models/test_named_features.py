# SPDX-License-Identifier: Apache-2.0
import json

import numpy as np
import pandas as pd
import pytest
from tvm.relax.frontend import nn

import sparsetrain as st
from sparsetrain import ad
from sparsetrain.cli import main
from sparsetrain.compiler.program import value_and_grad
from sparsetrain.data import ColumnRule, Ragged, Schema
from sparsetrain.embedding import Embedding
from sparsetrain.errors import ConfigError, DataError
from sparsetrain.models import (
    BPR,
    DIN,
    ESMM,
    HSTU,
    BERT4Rec,
    Ids,
    MatrixFactorization,
    MMoE,
    Model,
    SASRec,
    Sequence,
    TwoTowers,
)
from sparsetrain.models.draws import Draws
from sparsetrain.training.step import loss_inputs
from sparsetrain.verify.widen import widen_function
from tests.helpers import slow_except

ITEMS, ROWS = 30, 96

HISTORY = ("history", "item")
# Model -> the category columns of its data, labels, and arguments.
MODELS = {
    DIN: (("user", *HISTORY), {"click": "binary"}, {"label": "click", "dim": 8}),
    MMoE: (("user", "item"), {"click": "binary", "stars": "real"}, {"num_dense": 0}),
    ESMM: (("user", "item"), {"click": "binary", "bought": "binary"}, {"num_dense": 0}),
    MatrixFactorization: (("user", "item"), {"rating": "real"}, {"dim": 8}),
    TwoTowers: (("user", *HISTORY), {}, {"dim": 8, "hidden": [8]}),
    BPR: (("user", "item"), {}, {"dim": 8}),
    SASRec: (HISTORY, {}, {"dim": 8, "length": 10}),
    HSTU: (HISTORY, {}, {"dim": 8, "length": 10, "heads": 2, "buckets": 9}),
    BERT4Rec: (HISTORY, {}, {"dim": 8, "length": 10}),
}


@pytest.fixture(scope="module")
def rows():
    return frame()


def frame() -> pd.DataFrame:
    """Rows whose item follows the last one of the history."""
    rng = np.random.default_rng(0)
    history = [rng.integers(0, ITEMS, rng.integers(0, 12)).tolist() for _ in range(ROWS)]
    item = [(items[-1] + 1) % ITEMS if items else 0 for items in history]
    made = pd.DataFrame({"user": rng.integers(0, 20, ROWS), "history": history, "item": item})
    made["click"] = (made["item"] % 2).astype(int)
    made["bought"] = (made["item"] % 4 == 1).astype(int)
    made["stars"] = np.where(rng.random(ROWS) < 0.5, np.nan, 1.0 + made["item"] % 5)
    made["rating"] = 1.0 + made["user"] % 5
    made["age"] = [(10.0 ** np.arange(len(items))[::-1]).tolist() for items in history]
    return made


def trainer_for(cls, rows, model_options=None, **options):
    categories, labels, arguments = MODELS[cls]
    arguments = arguments | (model_options or {})
    shared = {"item": ColumnRule(share_embedding="history")} if "history" in categories else {}
    shared |= {"history": ColumnRule(weights="age")} if cls is HSTU else {}
    schema = Schema(categories=categories, labels=labels, columns=shared)
    encoder = st.data.Encoder.fit(rows, schema=schema, min_count=1)
    sizes = dict(zip(encoder.columns, encoder.rows, strict=True))
    if cls in (MMoE, ESMM):
        model = cls(encoder.rows, names=encoder.columns, labels=encoder.labels, **arguments)
    else:
        model = cls(sizes, **arguments)
    optimizer = options.pop("optimizer", st.optim.adam(0.01))
    chosen = {"target": "cpu", "seed": 1} | options
    return st.Trainer(model, optimizer, encoder=encoder, **chosen)


@pytest.fixture(scope="module")
def sasrec(rows):
    """A trainer that no test trains."""
    return trainer_for(SASRec, rows)


@pytest.mark.parametrize("cls", slow_except([HSTU], MODELS))
def test_a_model_is_trained_resumed_loaded_and_scores(cls, rows, tmp_path, capsys):
    fit = {"batch_size": 32, "validation": rows, "progress": None}
    trainer = trainer_for(cls, rows)
    history = trainer.fit(rows, epochs=3, **fit)
    assert history["epochs"][-1]["loss"] < history["epochs"][0]["loss"]
    trainer_for(cls, rows).fit(rows, epochs=2, run=tmp_path / "run", **fit)
    resumed = st.load(tmp_path / "run", model=cls, target="cpu")
    resumed.fit(rows, epochs=3, run=tmp_path / "run", resume=True, **fit)
    states = trainer.state_dict(), resumed.state_dict()
    assert states[0].keys() == states[1].keys()
    assert all(np.array_equal(states[0][name], states[1][name]) for name in states[0])
    assert np.array_equal(trainer.predict(rows), resumed.predict(rows))
    scores = trainer.evaluate(rows)
    assert scores == resumed.evaluate(rows)
    rows.to_parquet(tmp_path / "rows.parquet")
    command = ["evaluate", str(tmp_path / "run"), str(tmp_path / "rows.parquet"), "--json"]
    assert main([*command, "--checkpoint", "latest"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert scores == {name: printed[name] for name in scores}


@pytest.mark.parametrize("cls", slow_except([DIN], [DIN, TwoTowers, SASRec, HSTU, BERT4Rec]))
def test_gradients_agree_with_float64(cls, rows):
    narrow = {"top": [8], "attention": [8]} if cls is DIN else {}
    trainer = trainer_for(cls, rows[:12], narrow)
    batch = trainer.encoder.encode(rows[:12], require_label=bool(trainer.model.all_labels))
    inputs = loss_inputs(trainer, batch)
    params = {name: p.numpy().astype(np.float64) for name, p in trainer.params.items()}
    module = widen_function(trainer.model.export(), "loss")
    densify = trainer.model.densify
    program = value_and_grad(module, "loss", [*params], densify=densify, target="cpu")
    wide = {n: v.astype(np.float64) if v.dtype.kind == "f" else v for n, v in inputs.items()}
    ad.check_grads(program, params, wide, directions=1, step=1e-6, rtol=1e-5, atol=1e-7)


def test_parts_of_a_batch_draw_as_the_whole_does(rows):
    """Negatives by the number of a row; both batches have the same lengths of rows in each part."""
    whole, parts = (
        trainer_for(BPR, rows, accumulate=n, optimizer=st.optim.sgd(10.0)) for n in (1, 3)
    )
    for trainer in (whole, parts):
        trainer.step(trainer.encoder.encode(rows, require_label=False))
    for name, weights in whole.state_dict().items():
        np.testing.assert_allclose(parts.state_dict()[name], weights, rtol=1e-4, atol=1e-6)


def test_exact_mode_has_the_bits_of_dense_updates_with_prepared_ids(rows):
    exact = trainer_for(BPR, rows, optimizer=st.optim.adam(0.01, mode="exact"))
    dense = trainer_for(BPR, rows, optimizer=st.optim.adam(0.01, mode="dense"))
    for trainer in (exact, dense):
        trainer.fit(rows, batch_size=8, progress=None)
    one, other = exact.state_dict(), dense.state_dict()
    assert all(np.array_equal(one[name], other[name]) for name in other)


def test_recommendations_leave_out_what_was_seen_unless_told(sasrec, rows):
    trainer = sasrec
    ids, scores = trainer.recommend(rows, k=5)
    seen = trainer.model.read("history", trainer.encoder.encode(rows, require_label=False))
    for row in range(ROWS):
        bag = seen.ids[seen.offsets[row] : seen.offsets[row + 1]]
        assert not {*ids[row]} & {*bag}
    assert ids.min() >= 2  # the rows of missing and of rare values are not items
    assert (np.diff(scores) <= 0).all()
    items, queries = trainer.item_vectors(), trainer.query_vectors(rows)
    best, _ = trainer.recommend(rows, k=1, include_seen=True)
    known = items[2 : int(trainer.encoder.rows[trainer.encoder.columns.index("item")])]
    told = rows["history"].str.len() > 0  # every item scores 0 for a user without a history
    assert (best[told, 0] == 2 + (queries @ known.T)[told].argmax(axis=1)).all()


def test_drawn_negatives_are_the_same_in_every_call(sasrec, rows):
    trainer = sasrec
    scores = trainer.evaluate(rows, k=(1, 5), negatives=10)
    assert scores == trainer.evaluate(rows, k=(1, 5), negatives=10)
    assert scores["hr@1"] <= scores["hr@5"] <= 1


def test_an_item_is_ranked_among_given_ids_or_those_drawn_by_weight(sasrec, rows):
    trainer, four = sasrec, [2, 3, 4, 5]
    _, known, own = trainer_rows(trainer, rows)
    rows = rows[[not {*bag, item} & {*four} for bag, item in zip(known, own, strict=True)]]
    scores, _, own = trainer_rows(trainer, rows)
    better = scores[:, four] >= scores[np.arange(len(own)), own][:, None]
    weights = np.isin(np.arange(scores.shape[1]), four) * 2.0
    for options in (
        {"negatives": np.tile(four, (len(rows), 1))},
        {"negatives": 4, "negative_weights": weights},
    ):
        found = trainer.evaluate(rows, k=2, **options)
        assert found["users"] == len(rows)
        assert found["hr@2"] == pytest.approx((better.sum(axis=1) < 2).mean())
    for fault, message in (
        ({"negatives": np.tile(four, (len(rows) - 1, 1))}, "fewer than the data"),
        ({"negatives": np.full((len(rows), 4), 999)}, "ids .rows, n. from 0 to"),
        ({"negatives": 2, "negative_weights": weights[1:]}, "give a weight of 0 or more"),
        ({"negative_weights": weights}, "need a number of negatives"),
    ):
        with pytest.raises(ConfigError, match=message):
            trainer.evaluate(rows, k=1, **fault)


def trainer_rows(trainer, rows):
    """Scores of all items, histories and wanted items of rows."""
    batch = trainer.encoder.encode(rows, require_label=False)
    seen, own = (trainer.model.read(name, batch) for name in ("history", "item"))
    known = np.split(seen.ids, seen.offsets[1:-1])
    return trainer.query_vectors(rows) @ trainer.item_vectors().T, known, own


def test_hstu_attends_as_its_paper_says(rows):
    trainer = trainer_for(HSTU, rows)
    state = {name: array.astype("f8") for name, array in trainer.state_dict().items()}
    batch = trainer.encoder.encode(rows, require_label=False)
    row = int(np.argmax(rows["history"].str.len() == 7))
    ages = np.array(rows["age"][row], np.float32)
    ids = np.split(batch.ids[0].ids, batch.ids[0].offsets[1:-1])[row]
    x = state["item.weight"][ids] * 8**0.5 + state["positions.table.weight"][:7]
    for block in range(2):
        part = {n.removeprefix(f"blocks.{block}."): a for n, a in state.items()}
        mixed = norm(x) @ part["mixed.weight"].T
        u, v, q, k = np.split(mixed / (1 + np.exp(-mixed)), 4, axis=1)
        attended = np.zeros_like(x)
        for i, j in zip(*np.tril_indices(7), strict=True):
            bucket = min(int(np.log(max(ages[j] - ages[i], 1)) / 0.301), 8)
            bias = part["places.weight"][i - j, 0] + part["times.weight"][bucket, 0]
            for head in (slice(0, 4), slice(4, 8)):
                s = q[i, head] @ k[j, head] + bias
                attended[i, head] += s / (1 + np.exp(-s)) / 10 * v[j, head]
        x = x + (norm(attended) * u) @ part["out.weight"].T + part["out.bias"]
    found = trainer.query_vectors(rows)[row]
    np.testing.assert_allclose(found, norm(x)[-1], rtol=1e-4, atol=1e-5)


def test_sasrec_attends_as_its_paper_says(rows):
    """With places that count from the last item."""
    trainer = trainer_for(SASRec, rows)
    state = {name: array.astype("f8") for name, array in trainer.state_dict().items()}
    batch = trainer.encoder.encode(rows, require_label=False)
    row = int(np.argmax(rows["history"].str.len() == 7))
    ids = np.split(batch.ids[0].ids, batch.ids[0].offsets[1:-1])[row]
    x = state["item.weight"][ids] * 8**0.5 + state["positions.table.weight"][6::-1]
    for block in range(2):

        def linear(name, y, block=block):
            weight, bias = (state[f"blocks.{block}.{name}.{part}"] for part in ("weight", "bias"))
            return y @ weight.T + bias

        q, k, v = (linear(f"attention.{name}", norm(x)) for name in ("query", "key", "value"))
        weights = np.exp(q @ k.T / 8**0.5) * np.tri(7)
        x = x + linear("attention.out", weights / weights.sum(1, keepdims=True) @ v)
        x = x + linear("down", np.maximum(linear("up", norm(x)), 0))
    found = trainer.query_vectors(rows)[row]
    np.testing.assert_allclose(found, norm(x)[-1], rtol=1e-4, atol=1e-5)


def norm(x):
    """Layer norm with the gain and bias that it begins with."""
    return (x - x.mean(1, keepdims=True)) / np.sqrt(x.var(1, keepdims=True) + 1e-5)


def test_esmm_scores_conversions_by_the_product_of_both_chances(rows):
    trainer = trainer_for(ESMM, rows, {"dim": 4, "tower": [8]})
    model, state = trainer.model, trainer.state_dict()
    batch = trainer.encoder.encode(rows)
    names = model.config()["names"]
    tables = [state[f"embeddings.{name}.weight"][batch.ids[:, f]] for f, name in enumerate(names)]
    x = np.hstack([np.ones((len(rows), 1)), *tables])

    def chance(tower):
        y = x
        for layer in range(2):
            weight, bias = (state[f"{tower}.layers.{layer}.{part}"] for part in ("weight", "bias"))
            y = y @ weight.T.astype(np.float64) + bias
            y = np.maximum(y, 0) if layer < 1 else y
        return 1 / (1 + np.exp(-y[:, 0]))

    click, conversion = chance("click"), chance("conversion")
    found = trainer.predict(rows)
    np.testing.assert_allclose(found, np.stack([click, click * conversion], axis=1), rtol=1e-5)
    with pytest.raises(ConfigError, match="ESMM learns two labels"):
        ESMM([3, 4])


def test_negatives_of_pairs_are_seldom_items_of_the_history():
    rng, count = np.random.default_rng(0), 3000
    known = Ragged(rng.integers(0, 6, 2 * count), np.arange(0, 2 * count + 1, 2))
    model = BPR({"user": 5, "item": 6, "history": 6}, history="history")
    features = {"item": rng.integers(0, 6, count), "history": known}
    drawn = model.prepare(features, Draws(seed=0, step=0))["negative"]
    hit = (known.ids.reshape(-1, 2) == drawn[:, None]).any(axis=1)
    assert 0.01 < hit.mean() < 0.05  # by chance 0.31 of the first draw, so 0.03 of three


class Popularity(Model):
    """A score for each item."""

    def __init__(self, items):
        super().__init__()
        self.item = Embedding(items, 1)
        self.features = {"item": Ids("item")}
        self.labels = {"click": "binary"}

    def forward(self, item):
        return self.item(item)


def test_batches_without_an_encoder_have_the_features_in_their_order():
    trainer = st.Trainer(Popularity(4), st.optim.sgd(0.1), target="cpu")
    batch = st.Batch(np.empty((2, 0)), [[3], [1]], [1, 0])
    loss = float(trainer.step(batch))
    assert float(trainer.step(batch)) < loss
    with pytest.raises(DataError, match="row 1, feature item: id 4 is outside its table of 4 rows"):
        trainer.step(st.Batch(np.empty((2, 0)), [[3], [4]], [1, 0]))
    with pytest.raises(DataError, match="the batch has 2 categorical features, the model 1: item"):
        trainer.step(st.Batch(np.empty((1, 0)), [[3, 3]], [1]))
    two = st.Batch(np.empty((1, 0)), [Ragged([1, 2], [0, 2])], [1])
    with pytest.raises(DataError, match="row 0, feature item: it has 2 ids, where the model reads"):
        trainer.step(two)


def broken(change):
    """A class that differs from `Popularity` in one attribute or method."""
    return type("Broken", (Popularity,), change)


@pytest.mark.parametrize(
    "change, message",
    [
        ({"forward": lambda self, film: self.item(film)}, "takes 'film', which is not one of its"),
        ({"forward": lambda self, item: nn.op.sum(self.item(item), axis=1)}, "not \\(B, 1\\)"),
        ({"loss": lambda self, item: self.item(item)}, "loss gave the shape"),
        ({"prepared": {"other": Ids("films")}}, "has no Embedding 'films'"),
    ],
)
def test_a_model_that_cannot_be_trained_is_refused(change, message):
    with pytest.raises(ConfigError, match=message):
        st.Trainer(broken(change)(4), st.optim.sgd(0.1), target="cpu")


def test_rows_without_a_column_are_refused():
    with pytest.raises(ConfigError, match="SASRec: rows has no column 'item'; it has film"):
        SASRec({"film": 9})
    with pytest.raises(ConfigError, match="BPR: rows is .*; give a dict"):
        BPR([5, 9])


def test_histories_that_are_all_empty_teach_nothing(rows):
    trainer = trainer_for(HSTU, rows)
    before = trainer.state_dict()
    empty = rows[:2].assign(history=[[], []], age=[[], []])
    assert float(trainer.step(trainer.encoder.encode(empty, require_label=False))) == 0
    after = trainer.state_dict()
    assert all(np.array_equal(after[name], before[name]) for name in before if ":" not in name)


def test_a_model_without_a_loss_is_refused():
    model = Popularity(4)
    model.labels = {}
    with pytest.raises(ConfigError, match="Popularity has no loss: define loss"):
        st.Trainer(model, st.optim.sgd(0.1), target="cpu")


def test_an_encoder_without_the_columns_is_refused(rows):
    schema = Schema(categories=("user", "history", "item"))
    encoder = st.data.Encoder.fit(rows, schema=schema, min_count=1)
    with pytest.raises(ConfigError, match="item has 4 rows, the encoder's item 30"):
        st.Trainer(Popularity(4), st.optim.sgd(0.1), encoder=encoder, target="cpu")
    with pytest.raises(ConfigError, match="history and item are ids of one table, but the encoder"):
        st.Trainer(SASRec({"item": 40}), st.optim.sgd(0.1), encoder=encoder, target="cpu")
    lacking = st.data.Encoder.fit(rows, schema=Schema(categories=("item",)), min_count=1)
    with pytest.raises(ConfigError, match="SASRec reads the column 'history'; the encoder has ite"):
        st.Trainer(SASRec({"item": 40}), st.optim.sgd(0.1), encoder=lacking, target="cpu")


def test_what_a_model_prepares_is_checked(rows):
    class Outside(BPR):
        def prepare(self, features, draws):
            return {"negative": features["item"] + 1000}

    trainer = st.Trainer(Outside({"user": 20, "item": 30}), st.optim.sgd(0.1), target="cpu")
    with pytest.raises(DataError, match="row 0, feature negative: id 1000 is outside its table"):
        trainer.step(st.Batch(np.empty((1, 0)), [[0, 0]]))


def test_scores_without_anything_to_score_are_refused():
    trainer = st.Trainer(Popularity(4), st.optim.sgd(0.1), target="cpu")
    with pytest.raises(
        ConfigError, match="Popularity has no query.* and items.*, which retrieval needs"
    ):
        trainer.item_vectors()


def test_draws_depend_on_the_number_of_a_row_alone():
    like = Ragged(np.zeros(7, int), [0, 3, 3, 7])
    whole = Draws(5, step=2).integers("negative", 1000, like=like)
    part = Draws(5, step=2, first_row=1).integers("negative", 1000, Ragged([0] * 4, [0, 0, 4]))
    assert np.array_equal(whole.ids[3:], part.ids)
    assert not np.array_equal(whole.ids, Draws(5, step=3).integers("negative", 1000, like).ids)


def test_draws_are_uniform():
    numbers = Draws(0, 0).integers("x", 10, like=np.zeros((5000, 4)))
    counts = np.bincount(numbers.ravel(), minlength=10)
    assert abs(counts - 2000).max() < 4 * np.sqrt(1800)
    assert abs(Draws(0, 0).uniform("x", np.zeros(20_000)).mean() - 0.5) < 0.01


def test_a_sequence_keeps_the_last_ids_of_each_row():
    bags = Ragged(np.arange(7), [0, 4, 4, 7])
    kept = Sequence("item", length=2).read("history", st.Batch(np.empty((3, 0)), [bags]), 0)
    assert kept.ids.tolist() == [2, 3, 5, 6] and kept.offsets.tolist() == [0, 2, 2, 4]


def test_bags_are_cut_and_extended():
    bags = Ragged(np.arange(5), [0, 2, 2, 5])
    assert bags.without_first().ids.tolist() == [1, 3, 4]
    assert bags.without_last().offsets.tolist() == [0, 1, 1, 3]
    assert bags.append([7, 8, 9]).ids.tolist() == [0, 1, 7, 8, 2, 3, 4, 9]
    places = bags.where(bags.ids % 2 == 0)
    assert places.ids.tolist() == [0, 0, 2] and bags.at(places).ids.tolist() == [0, 2, 4]
