# SPDX-License-Identifier: Apache-2.0
"""Models that rank: losses by their options, how negatives are drawn, graphs and closed forms."""

import numpy as np
import pyarrow as pa
import pytest
from scipy.sparse import csr_array

import sparsetrain as st
from sparsetrain.data import Interactions
from sparsetrain.errors import ConfigError, DataError
from sparsetrain.models import BPR, EASE, ItemKNN, LightGCN, Pop, TwoTowers
from sparsetrain.models.draws import Draws
from sparsetrain.training.chosen_items import chosen_items
from sparsetrain.training.step import loss_inputs

MODELS = (LightGCN, Pop, ItemKNN, EASE)  # that no other file tests
USERS, ITEMS, FIRST = 40, 25, 2  # ids below FIRST are of missing and rare values


@pytest.fixture(scope="module")
def split():
    rng = np.random.default_rng(0)
    user = np.repeat(np.arange(USERS), 8)
    item = (rng.integers(0, ITEMS, USERS)[user] + rng.integers(0, 9, len(user))) % ITEMS
    return Interactions.read({"user": user, "item": item}).split_random(0.2, 0.2, each="item")


def trainer_for(made, split, optimizer=None, **options):
    encoder = split.encoder()
    rows = dict(zip(encoder.columns, encoder.rows, strict=True))
    if made is LightGCN:
        options["interactions"] = len(split.train)
    model = made(rows, **options)
    optimizer = optimizer or st.optim.sgd(0.1)
    return st.Trainer(model, optimizer, encoder=encoder, target="cpu")


def softmax(scores):
    return np.log(np.exp(scores).sum(axis=-1)) - scores[..., 0]


def bpr(positive, negatives):
    return np.log1p(np.exp(negatives - positive[:, None])).mean(axis=1)


def ccl(positive, negatives, margin=0.4, weight=150):
    return 1 - positive + weight * np.maximum(negatives - margin, 0).mean(axis=1)


def warp(positive, negatives):
    hinge = np.maximum(1 - positive[:, None] + negatives, 0)
    first = (hinge > 0).argmax(axis=1)
    weights = [sum(1 / r for r in range(1, (ITEMS - 1) // (n + 1) + 1)) for n in first]
    return hinge[np.arange(len(first)), first] * weights


# Options -> the loss of scores (B,) and (B, K) in NumPy.
LOSSES = {
    "one negative": ({}, bpr),
    "several": ({"negatives": 3}, bpr),
    "shared": ({"negatives": 5, "shared": True}, bpr),
    "softmax": (
        {"loss": "softmax", "negatives": 4},
        lambda p, n: softmax(np.concatenate([p[:, None], n], axis=1)),
    ),
    "contrastive": ({"loss": "ccl", "negatives": 6}, ccl),
    "contrastive, shared": ({"loss": "ccl", "negatives": 6, "shared": True}, ccl),
    "ranks": ({"loss": "warp", "negatives": 5}, warp),
}


@pytest.mark.parametrize("name", LOSSES)
def test_a_loss_is_that_of_float64(name, split):
    options, wanted = LOSSES[name]
    trainer = trainer_for(BPR, split, dim=4, decay=0.01, **options)
    trainer.learn_(trainer._dataset(split.train))
    batch = trainer.encoder.encode(split.train[:30], require_label=False)
    inputs, tables = loss_inputs(trainer, batch), trainer.state_dict()
    users, items = (tables[f"{n}.weight"].astype(float) * 40 for n in ("user", "item"))
    trainer.load_table("user", users)
    trainer.load_table("item", items)
    u, i, j = users[inputs["user"]], items[inputs["item"]], items[inputs["negative"]]
    decay = 0.01 * sum((rows**2).sum() for rows in (u, i, j)) / (2 * len(u))
    if options.get("loss") == "ccl":
        u, i, j = (x / np.sqrt((x**2).sum(axis=-1, keepdims=True)) for x in (u, i, j))
    j = j[:, None] if j.ndim == 2 and not options.get("shared") else j
    negatives = u @ j.T if options.get("shared") else np.einsum("bd,bkd->bk", u, j)
    expected = wanted((u * i).sum(axis=1), negatives).mean() + decay
    assert float(trainer.step(batch)) == pytest.approx(expected, rel=1e-5)


def test_what_a_user_chose_is_seldom_drawn_for_it(split):
    trainer = trainer_for(BPR, split, dim=2, negatives=50)
    trainer.learn_(trainer._dataset(split.train))
    chosen = chosen_items(trainer.model, trainer._dataset(split.train)).toarray()
    batch = trainer.encoder.encode(split.train, require_label=False)
    drawn = loss_inputs(trainer, batch)["negative"]
    user = trainer.model.read("user", batch)
    assert drawn.min() >= FIRST and chosen[:, FIRST:].mean() > 0.1
    assert chosen[user[:, None], drawn].mean() < 0.02


@pytest.mark.parametrize("power", [0.5, 0.9])
def test_popular_items_are_drawn_by_a_power_of_their_count(power, split):
    trainer = trainer_for(BPR, split, loss="softmax", negatives=9, popularity=power, shared=True)
    model = trainer.model
    trainer.learn_(trainer._dataset(split.train))
    counts = chosen_items(model, trainer._dataset(split.train)).sum(axis=0)
    chances = np.maximum(counts[FIRST:], 1) ** power
    chances /= chances.sum()
    drawn = model._drawn("x", Draws(0, 0), np.empty((1, 200_000)))
    found = np.bincount(drawn[0], minlength=FIRST + ITEMS)[FIRST:] / drawn.size
    np.testing.assert_allclose(found, chances, atol=0.004)
    corrections = trainer.state_dict()["log_chances"][FIRST:]
    np.testing.assert_allclose(corrections, np.log(chances), rtol=1e-5)


def test_parts_of_a_batch_share_negatives_as_the_whole_does(split):
    options = {"loss": "ccl", "negatives": 6, "shared": True, "dim": 4}
    trainer = trainer_for(BPR, split, **options)
    batch = trainer.encoder.encode(split.train, require_label=False)
    first, second = (loss_inputs(trainer, batch, row)["negative"] for row in (0, 17))
    assert first.tolist() == second.tolist() and len(first) == 6


def graph_vectors(user, item, chosen, layers):
    """By the matrix of users and items, in NumPy."""
    count = len(user)
    adjacency = np.zeros((count + len(item),) * 2)
    adjacency[:count, count:], adjacency[count:, :count] = chosen, chosen.T
    roots = np.sqrt(np.maximum(adjacency.sum(axis=1), 1))
    adjacency /= roots[:, None] * roots
    every = [np.concatenate([user, item]).astype(float)]
    for _ in range(layers):
        every.append(adjacency @ every[-1])
    mean = np.mean(every, axis=0)
    return mean[:count], mean[count:]


@pytest.mark.parametrize("options", [{}, {"loss": "in_batch"}, {"decay": 0.01, "negatives": 2}])
def test_light_gcn_has_the_vectors_of_its_graph_and_keeps_them(options, split, tmp_path):
    trainer = trainer_for(LightGCN, split, st.optim.adam(0.02), dim=4, layers=2, **options)
    before = trainer.state_dict()["user.weight"].copy()
    trainer.fit(split.train, epochs=3, batch_size=64, progress=None, run=tmp_path / "run")
    tables = trainer.state_dict()
    assert not np.array_equal(before, tables["user.weight"])
    chosen = chosen_items(trainer.model, trainer._dataset(split.train)).toarray()
    users, items = graph_vectors(tables["user.weight"], tables["item.weight"], chosen, 2)
    np.testing.assert_allclose(trainer.item_vectors(), items, rtol=1e-4, atol=1e-6)
    rows = split.test
    of_rows = users[trainer.model.read("user", trainer.encoder.encode(rows, require_label=False))]
    np.testing.assert_allclose(trainer.query_vectors(rows), of_rows, rtol=1e-4, atol=1e-6)
    loaded = st.load(tmp_path / "run")
    assert loaded.evaluate(rows) == trainer.evaluate(rows)


def test_a_graph_of_more_choices_than_there_is_room_for_is_refused(split):
    trainer = trainer_for(LightGCN, split._replace(train=split.train[:5]))
    with pytest.raises(ConfigError, match="choices to train on, but interactions is 5"):
        trainer.fit(split.train, progress=None)


def ease(x, l2=250):
    """Each column by itself: ridge regression on the other items."""
    scores = np.zeros(x.shape)
    for i in range(x.shape[1]):
        others = np.delete(x, i, axis=1)
        gram = others.T @ others + l2 * np.eye(others.shape[1])
        scores[:, i] = others @ np.linalg.solve(gram, others.T @ x[:, i])
    return scores


def item_knn(x, neighbours=100):
    norms = np.sqrt(x.sum(axis=0))
    cosines = x.T @ x / (np.outer(norms, norms) + 1e-6)
    np.fill_diagonal(cosines, 0)
    for column in cosines.T:
        column[np.argsort(-column, kind="stable")[neighbours:]] = 0
    return x @ cosines


CLOSED = {
    Pop: ({}, lambda x: np.tile(x.sum(axis=0), (len(x), 1))),
    EASE: ({"l2": 3}, lambda x: ease(x, 3)),
    ItemKNN: ({"neighbours": 20}, lambda x: item_knn(x, 20)),
}


@pytest.mark.parametrize("made", CLOSED)
def test_a_closed_form_has_the_scores_of_float64(made, split, tmp_path):
    options, wanted = CLOSED[made]
    trainer = trainer_for(made, split, **options)
    history = trainer.fit(split.train, validation=split.valid, progress=None, run=tmp_path / "run")
    assert history["loss"] is None and trainer.steps == 0 and history["epochs"][0]["valid"]
    chosen = chosen_items(trainer.model, trainer._dataset(split.train)).toarray().astype(float)
    lists = csr_array(chosen)
    params = {name: array for name, array in trainer.state_dict().items()}
    np.testing.assert_allclose(
        trainer.model.score_history(lists.astype(np.float32), params),
        wanted(chosen),
        rtol=1e-4,
        atol=1e-5,
    )
    loaded = st.load(tmp_path / "run")
    assert loaded.evaluate(split.test) == trainer.evaluate(split.test)
    ids, _ = loaded.recommend(split.test, k=3)
    seen = [{*row} for row in split.test["history"].to_pylist()]
    values = loaded.encoder.values("item")
    assert all(values[i] not in row for own, row in zip(ids, seen, strict=True) for i in own)


def test_two_towers_take_all_further_items_of_a_user_and_draw_no_negatives_for_a_batch(split):
    trainer = trainer_for(TwoTowers, split, history_of="users")
    trainer.learn_(trainer._dataset(split.train))
    model, batch = trainer.model, trainer.encoder.encode(split.train, require_label=False)
    features = {name: model.read(name, batch) for name in model.features}
    made = model.prepare(features, Draws(seed=1, step=2))
    assert [*made] == ["history"]
    chosen = chosen_items(model, trainer._dataset(split.train))
    for row, (user, item) in enumerate(zip(features["user"], features["item"], strict=True)):
        further = [n for n in chosen[[user]].indices if n != item]
        assert made["history"].take(np.array([row])).ids.tolist() == further


def test_only_a_model_that_learns_from_all_rows_reads_them_before_the_first_step(split):
    for loss, learns in {"in_batch": False, "bpr": True}.items():
        trainer = trainer_for(TwoTowers, split, loss=loss)
        assert trainer.model.learns is learns
        rows = pa.RecordBatchReader.from_batches(split.train.schema, split.train.to_batches())
        if learns:
            with pytest.raises(DataError, match="the reader was read already; give a table"):
                trainer.fit(rows, progress=None, shuffle=False)
        else:
            trainer.fit(rows, progress=None, shuffle=False)
    assert trainer_for(LightGCN, split, loss="in_batch").model.learns  # its graph
