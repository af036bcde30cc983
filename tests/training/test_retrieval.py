# SPDX-License-Identifier: Apache-2.0
"""Items that have no row of their own are wanted all the same, and never recommended."""

import math

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import sparsetrain as st
from sparsetrain.data import ColumnRule, Dataset, Interactions, Schema
from sparsetrain.errors import ConfigError, DataError
from sparsetrain.models import BPR, TwoTowers

KNOWN = ("a", "b", "c", "d", "e", "f")  # scored in this order, best first
RARE = ("x", "y")  # once each, where two times are needed for a row
SCHEMA = Schema(
    categories=("user", "history", "item"),
    columns={"item": ColumnRule(share_embedding="history")},
)


def table(*rows: tuple[list, list]) -> pa.Table:
    """A row for each history and what was wanted behind it, all of one user."""
    histories, items = zip(*rows, strict=True)
    lists = pa.list_(pa.string())
    columns = {"history": pa.array(histories, lists), "item": pa.array(items, lists)}
    return pa.table({"user": [1] * len(rows), **columns})


@pytest.fixture(scope="module")
def trainer() -> st.Trainer:
    learnt = table(([*KNOWN], [*KNOWN]), ([], [*RARE]))
    encoder = st.data.Encoder.fit(learnt, schema=SCHEMA, min_count=2, treat_as="raw")
    rows = dict(zip(encoder.columns, encoder.rows, strict=True))
    model = BPR(rows, dim=2, history="history")
    made = st.Trainer(model, st.optim.sgd(0.1), encoder=encoder, target="cpu")
    order = [KNOWN.index(value) if value else -1 for value in encoder.values("item")]
    made.load_table("user", np.ones((rows["user"], 2), np.float32))
    made.load_table("item", -np.float32([order, order]).T)
    return made


HALF = 1 / math.log2(3)  # discount of the second rank
IDEAL = sum(1 / math.log2(rank + 1) for rank in range(1, 5))
# Wanted items -> recall, ndcg and map at 5, None of a user who is left out.
WANTED = {
    "of never seen values each counts": (["a", "p", "q", "r"], (0.25, 1 / IDEAL, 0.25)),
    "of rare values each counts": (["b", "x", "y"], (1 / 3, HALF / (1 + HALF + 0.5), 1 / 6)),
    "equal values count once": (["a", "a", "p", "p", "p"], (0.5, 1 / (1 + HALF), 0.5)),
    "a null is not wanted": (["a", None, None, ""], (1.0, 1.0, 1.0)),
    "one never seen alone": (["p"], (0.0, 0.0, 0.0)),
    "a null alone": ([None], None),
    "nothing": ([], None),
}


@pytest.mark.parametrize("name", WANTED)
def test_all_distinct_values_are_wanted(name, trainer):
    items, scores = WANTED[name]
    found = trainer.evaluate(table(([], items)), k=5)
    if scores is None:
        assert (found["users"], found["users_without_items"]) == (0, 1)
        return
    assert (found["users"], found["users_without_items"]) == (1, 0)
    told = [found[f"{metric}@5"] for metric in ("recall", "ndcg", "map")]
    assert told == pytest.approx(scores)


FORMS = {
    "dictionary": lambda rows: rows.set_column(
        2, "item", rows["item"].cast(pa.list_(pa.dictionary(pa.int32(), pa.string())))
    ),
    "bytes": lambda rows: rows.set_column(2, "item", rows["item"].cast(pa.list_(pa.binary()))),
    "large lists": lambda rows: rows.set_column(
        2, "item", rows["item"].cast(pa.large_list(pa.string()))
    ),
    "frame": lambda rows: rows.to_pandas(),
    "dataset": lambda rows: rows,
    "slice": lambda rows: pa.concat_tables([table((["a"], ["b"])), rows])[1:],
}


@pytest.mark.parametrize("form", FORMS)
def test_wanted_values_are_told_apart_in_every_form(form, trainer):
    rows = FORMS[form](table(([], ["a", "p", "p", "q", "r"]), (["b"], ["a", None])))
    if form == "dataset":
        rows = Dataset(rows, trainer.encoder, require_label=False)
    found = trainer.evaluate(rows, k=2)
    assert found["recall@2"] == pytest.approx((0.25 + 1) / 2)


def test_of_batches_each_id_without_a_row_is_another_value(trainer):
    rows = table(([], ["a", "a", "p", "q", None]))
    batch = trainer.encoder.encode(rows, require_label=False)
    assert trainer.evaluate([batch], k=2)["recall@2"] == pytest.approx(1 / 3)


def test_values_that_share_a_row_are_wanted_one_by_one():
    log = {"user": [1] * 40, "item": [str(n) for n in range(40)]}
    split = Interactions.read(log).split_random(0, 0)
    encoder = st.data.Encoder.fit(
        split.whole, schema=split.schema, min_count=1, max_rows=10, treat_as="raw"
    )
    rows = dict(zip(encoder.columns, encoder.rows, strict=True))
    trainer = st.Trainer(BPR(rows, dim=2), st.optim.sgd(0.1), encoder=encoder, target="cpu")
    wanted = pa.array([log["item"]], pa.list_(pa.string()))
    rows = pa.table({"user": [1], "history": pa.array([[]], wanted.type), "item": wanted})
    found = trainer.evaluate(rows, k=8)
    assert found["recall@8"] == pytest.approx(8 / 40)  # of rows that are items there are 8


def test_items_first_seen_after_the_split_count_against_recall():
    log = Interactions.read(
        {"user": [1, 1, 1, 1, 1], "item": [10, 11, 12, 13, 10], "time": [1, 1, 2, 2, 2]}
    )
    split = log.split_time(2)
    encoder = st.data.Encoder.fit(split.train, schema=split.schema, treat_as="raw", min_count=1)
    rows = dict(zip(encoder.columns, encoder.rows, strict=True))
    trainer = st.Trainer(BPR(rows, dim=2), st.optim.sgd(0.1), encoder=encoder, target="cpu")
    found = trainer.evaluate(split.valid, k=2)
    assert found["recall@2"] == pytest.approx(1 / 3)


def test_a_wanted_value_without_a_row_is_below_all_drawn_items(trainer):
    rows = table(([], ["p"]), ([], ["a"]), ([], [None]))
    found = trainer.evaluate(rows, k=3, negatives=2)
    assert (found["hr@3"], found["users"], found["users_without_items"]) == (0.5, 2, 1)


def test_fewer_items_than_k_are_told_where_fewer_are_left(trainer):
    seen = [["a", "b", "c", "d"], [*KNOWN], ["c", None, "p"]]
    ids, scores = trainer.recommend(table(*((bag, ["a"]) for bag in seen)), k=4)
    values = trainer.encoder.values("item")
    told = [[values[place] for place in row if place >= 0] for row in ids]
    assert told == [["e", "f"], [], ["a", "b", "d", "e"]]
    assert (ids[0, 2:] == -1).all() and (ids[1] == -1).all()
    assert np.isneginf(scores[ids < 0]).all() and np.isfinite(scores[ids >= 0]).all()
    whole, _ = trainer.recommend(table((seen[1], ["a"])), k=6, include_seen=True)
    assert [values[place] for place in whole[0]] == [*KNOWN]
    with pytest.raises(ConfigError, match="k is 7, but there are 6 items"):
        trainer.recommend(table(([], ["a"])), k=7)


@pytest.mark.parametrize("negatives", [None, 12])
def test_pop_beside_a_ranking_is_the_model_pop(negatives):
    rng = np.random.default_rng(0)
    user, item = rng.integers(0, 40, 600), np.minimum(rng.geometric(0.08, 600), 30)
    log = Interactions.read({"user": user, "item": item})
    split = log.leave_one_out("item")
    encoder = split.encoder()
    model = st.models.Pop.for_encoder(encoder)
    trainer = st.Trainer(model, st.optim.adam(0.01), encoder=encoder, target="cpu")
    trainer.fit(split.train, progress=None)
    found = trainer.evaluate(split.valid, k=(5, 10), negatives=negatives)
    for name in ("hr@5", "ndcg@10", "mrr@10", "map@5"):
        assert found[f"pop_{name}"] == found[name] > 0


def test_without_histories_there_is_no_pop(trainer):
    other = BPR.for_encoder(trainer.encoder, dim=2, history=None)
    made = st.Trainer(other, st.optim.sgd(0.1), encoder=trainer.encoder, target="cpu")
    assert not any(name.startswith("pop_") for name in made.evaluate(table((["a"], ["b"])), k=2))


@pytest.mark.parametrize("form", ["table", "frame", "dict", "rows", "parquet"])
def test_rows_to_recommend_for_need_no_column_of_wanted_items(form, trainer, tmp_path):
    with_it = table((["a", "b"], ["c"]), (["x"], ["d"]))
    without = with_it.drop_columns("item")
    pq.write_table(without, tmp_path / "rows.parquet")
    rows = {
        "table": without,
        "frame": without.to_pandas(),
        "dict": without.to_pydict(),
        "rows": without.to_pylist(),
        "parquet": tmp_path / "rows.parquet",
    }[form]
    for found, expected in zip(
        trainer.recommend(rows, 4), trainer.recommend(with_it, 4), strict=True
    ):
        np.testing.assert_array_equal(found, expected)
    np.testing.assert_array_equal(trainer.query_vectors(rows), trainer.query_vectors(with_it))
    scores = trainer.predict(rows)  # of all items
    assert scores.shape == (2, trainer.item_vectors().shape[0])
    assert np.isneginf(scores[:, :2]).all()
    chosen = [trainer.encoder.values("item").index(value) for value in ("c", "d")]
    np.testing.assert_array_equal(scores[[0, 1], chosen], trainer.predict(single(with_it)))
    with pytest.raises(DataError, match="column item: the category column is missing"):
        trainer.evaluate(rows)


def test_encoded_rows_need_no_column_of_wanted_items_either(tmp_path):
    rng = np.random.default_rng(0)
    ids = {"user": rng.integers(0, 9, 50), "item": rng.integers(0, 20, 50)}
    rows = pa.table({**ids, "history": pa.array(rng.integers(0, 20, (50, 3)).tolist())})
    encoder = st.data.Encoder.fit(rows, schema=SCHEMA, treat_as="encoded")
    made = st.Trainer(
        BPR.for_encoder(encoder, dim=2), st.optim.sgd(0.1), encoder=encoder, target="cpu"
    )
    pq.write_table(rows.drop_columns("item"), tmp_path / "rows.parquet")
    for given in (rows.drop_columns("item"), tmp_path / "rows.parquet"):
        np.testing.assert_array_equal(made.recommend(given, 3)[0], made.recommend(rows, 3)[0])


def single(rows: pa.Table) -> pa.Table:
    """The same rows, whose only item is no list."""
    place = rows.schema.get_field_index("item")
    return rows.set_column(place, "item", pa.array([each[0] for each in rows["item"].to_pylist()]))


def test_bpr_recommends_no_item_of_a_history_that_the_encoder_knows(trainer):
    made = BPR.for_encoder(trainer.encoder, dim=2)
    assert made.seen == "history" and BPR({"user": 3, "item": 4}).seen is None
    assert BPR.for_encoder(trainer.encoder, dim=2, history=None).seen is None
    other = BPR.for_encoder(trainer.encoder, dim=2, history="histroy")
    with pytest.raises(ConfigError, match="BPR reads the column 'histroy'"):
        st.Trainer(other, st.optim.sgd(0.1), encoder=trainer.encoder, target="cpu")


def test_two_towers_recommend_no_reserved_row_either():
    rows = {"user": [1, 2], "history": [["a", "b"], ["c"]], "item": ["c", "a"]}
    frame = pd.DataFrame(rows)
    encoder = st.data.Encoder.fit(frame, schema=SCHEMA, min_count=1, treat_as="raw")
    model = TwoTowers(dict(zip(encoder.columns, encoder.rows, strict=True)), dim=2, hidden=(2,))
    trainer = st.Trainer(model, st.optim.sgd(0.1), encoder=encoder, target="cpu")
    ids, _ = trainer.recommend(frame, k=3)
    values = encoder.values("item")
    assert [{values[i] for i in row if i >= 0} for row in ids] == [{"c"}, {"a", "b"}]
