# SPDX-License-Identifier: Apache-2.0
"""Equal rows that follow each other are computed once, to the same bits."""

import numpy as np
import pytest

import sparsetrain as st
from sparsetrain.data import Ragged
from sparsetrain.data.ragged import offsets_of
from sparsetrain.errors import DataError
from sparsetrain.models import BPR, HSTU, SASRec, TwoTowers, features
from sparsetrain.training import predictor, processes
from sparsetrain.training.equal_rows import distinct_rows

FEATURES = {
    "user": features.Ids("users"),
    "history": features.Sequence("items"),
    "age": features.Sequence("ages", weighted=True, like="history"),
    "price": features.Dense(2),
}
ITEMS = 60
TABLES = {"user": 20, "history": ITEMS, "item": ITEMS}
MODELS = {
    "two towers": lambda: TwoTowers(TABLES, dim=8, hidden=(8,)),
    "factors": lambda: BPR(TABLES, dim=8),
    "sequences": lambda: SASRec(TABLES, dim=8, blocks=2, heads=2, length=6),
    "sequences with a mask": lambda: st.models.BERT4Rec(TABLES, dim=8, blocks=1, heads=2, length=6),
    "sequences with ages": lambda: HSTU(TABLES, dim=8, blocks=1, heads=2, length=6),
}


def arguments(names, seed, rows=40):
    """Of few values, so that many neighbours are equal; then the rows as tuples of bytes."""
    rng = np.random.default_rng([seed, len(names)])
    chosen = np.repeat(rng.integers(0, 4, rows), rng.integers(1, 4, rows))[:rows]
    lengths = rng.integers(0, 3, 4) if seed % 2 else np.full(4, seed % 4)
    bags = Ragged(rng.integers(0, 2, lengths.sum()), offsets_of(lengths)).take(chosen)
    changed = rng.random(len(bags.ids)) < 0.1 * (seed % 3)
    inputs = {
        "user": chosen.astype(np.int32) // (1 + seed % 2),
        "history": np.where(changed, 9, bags.ids).astype(np.int32),
        "history_ends": bags.offsets[1:],
        "age": bags.ids.astype(np.int32),
        "age_weights": np.where(rng.random(len(bags.ids)) < 0.05, -0.0, 0.0).astype(np.float32),
        "price": np.float32([[0.0, -0.0], [0.0, 0.0], [1.0, 2.0], [1.0, 2.0]])[chosen],
    }
    return {n: a for n, a in inputs.items() if n.split("_")[0] in names or n == "history_ends"}


def rows_of(inputs):
    """Each row of arguments as what tells it from others."""
    ends = np.r_[0, inputs["history_ends"]]
    return [
        tuple(
            (inputs[n][begin:end] if n.startswith(("history", "age")) else inputs[n][row]).tobytes()
            for n in inputs
            if n != "history_ends"
        )
        + (int(end - begin),)
        for row, (begin, end) in enumerate(zip(ends, ends[1:], strict=False))
    ]


@pytest.mark.parametrize("names", [("user",), ("history",), ("history", "age"), (*FEATURES,)])
def test_rows_are_those_that_differ_from_the_one_before(names):
    found = set()
    for seed in range(60):
        inputs = arguments({"history", *names}, seed)
        wanted = rows_of(inputs)
        kept, numbers = distinct_rows(FEATURES, inputs)
        have = rows_of(kept)
        assert [have[n] for n in (range(len(wanted)) if numbers is None else numbers)] == wanted
        assert not any(one == other for one, other in zip(have, have[1:], strict=False))
        assert {n: a.dtype for n, a in kept.items()} == {n: inputs[n].dtype for n in kept}
        found.add(len(have) < len(wanted))
    assert True in found


def batch(model, users):
    """A row for each user, with the same history for the same user, and items that differ."""
    rng = np.random.default_rng(0)
    histories = Ragged(rng.integers(4, ITEMS, 60), np.r_[0, np.sort(rng.integers(0, 61, 19)), 60])
    weights = np.arange(60, dtype=np.float32)
    of = {
        "user": Ragged(np.arange(20), np.arange(21)),
        "history": Ragged(histories.ids, histories.offsets, weights),
        "item": Ragged(rng.integers(4, ITEMS, 20), np.arange(21)),
    }
    if not getattr(model.features.get("history"), "weighted", False):
        of["history"] = histories
    ids = [of[name].take(np.asarray(users)) for name in model.features]
    items = [*model.features].index("item")
    ids[items] = Ragged(rng.integers(4, ITEMS, len(users)), np.arange(len(users) + 1))
    return st.Batch(np.empty((len(users), 0)), ids)


@pytest.mark.parametrize("name", MODELS)
def test_one_user_with_many_candidates_is_computed_once(name, monkeypatch):
    trainer = st.Trainer(MODELS[name](), st.optim.sgd(0.1), seed=1)
    data = [batch(trainer.model, [3] * 50 + [4, 5, 4] + [6] * 7), batch(trainer.model, [8])]
    program, rows = trainer._program("query"), []

    class Counted:
        def __call__(self, weights, inputs):
            rows.append(len(inputs["user" if "user" in inputs else "history_ends"]))
            return program(weights, inputs)

    trainer._programs["query"] = Counted()
    found = trainer.predict(data), trainer.query_vectors(data), *trainer.recommend(data, 5)
    assert rows == [5, 1] * 3
    monkeypatch.setattr(processes, "distinct_inputs", whole)
    expected = trainer.predict(data), trainer.query_vectors(data), *trainer.recommend(data, 5)
    assert rows[6:] == [60, 1] * 3
    for one, other in zip(found, expected, strict=True):
        assert one.tobytes() == other.tobytes()


def whole(model, function, batch):
    """All rows, as without the search for equal ones."""
    return {} if batch is None else model.inputs(batch, function=function), None


@pytest.mark.parametrize("rows", [1, 7, 40])
def test_equal_numbers_of_a_user_are_computed_once(rows, monkeypatch):
    def trained():
        model = st.models.DLRM([9, 12], num_dense=3, dim=4, bottom=(8,), top=(8,))
        trainer = st.Trainer(model, st.optim.sgd(0.1), seed=1)
        return trainer, trainer._logits

    trainer, program = trained()
    computed = []

    def counted(weights, inputs):
        computed.append(len(inputs["dense"]))
        return program(weights, inputs)

    assert trainer._repeated == ["dense"]
    trainer._logits = counted
    rng = np.random.default_rng(0)
    users = np.minimum(np.arange(rows) // 9, 2)
    dense = rng.normal(size=(3, 3)).astype("f4")[users]
    data = st.Batch(dense, rng.integers(2, 9, (rows, 2)).astype(np.int32))
    found = trainer.predict([data])
    assert computed == [len(np.unique(users))]
    monkeypatch.setattr(predictor, "compute_repeated_once", lambda module, name: module)
    other, program = trained()
    assert "row_numbers" not in program.arguments.by_name
    assert found.tobytes() == other.predict([data]).tobytes()


def test_an_id_outside_of_its_table_is_named_by_its_row_in_the_batch():
    trainer = st.Trainer(MODELS["factors"](), st.optim.sgd(0.1))
    rows = batch(trainer.model, [3] * 5)
    wrong = Ragged(np.r_[rows.ids[0].ids[:-1], 20], np.arange(6))
    with pytest.raises(DataError, match="row 4, feature user: id 20 is outside"):
        trainer.query_vectors([st.Batch(rows.dense, [wrong, *rows.ids[1:]])])
