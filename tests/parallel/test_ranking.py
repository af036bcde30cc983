# SPDX-License-Identifier: Apache-2.0
"""Models that rank items on several ranks: the same bits, scores and lists as on one."""

import numpy as np
import pytest

import sparsetrain as st
from sparsetrain.parallel.group import Group
from tests.helpers import read_checkpoint, slow_except
from tests.parallel.threads import all_of, run_ranks

ITEMS = 300
MODELS = {
    "two tables, negatives drawn by place": lambda: st.models.BPR(
        {"user": 40, "item": ITEMS}, dim=8
    ),
    "two towers, negatives of the batch": lambda: st.models.TwoTowers(
        {"user": 40, "history": ITEMS, "item": ITEMS}, dim=8, hidden=(8,)
    ),
    "sequences with dropout": lambda: st.models.SASRec(
        {"history": ITEMS, "item": ITEMS}, dim=8, blocks=1, heads=1, length=4, dropout=0.3
    ),
    "masked sequences, every item a class": lambda: st.models.BERT4Rec(
        {"history": ITEMS, "item": ITEMS}, dim=8, blocks=1, heads=1, length=4, dropout=0.3
    ),
}
QUICK = "sequences with dropout"
ADAM = st.optim.adam(0.05, mode="exact")


def batches(model, sizes=(38, 38, 3)):
    """Ids by falling count; of histories some are empty."""
    rng = np.random.default_rng(0)
    for size in sizes:
        features = []
        for name in model.features:
            lengths = rng.integers(0, 5, size) if name == "history" else np.ones(size, int)
            ends = np.concatenate([[0], np.cumsum(lengths)])
            high = 40 if name == "user" else ITEMS
            features.append(st.data.Ragged(np.minimum(rng.zipf(1.3, ends[-1]), high - 1), ends))
        yield st.Batch(np.empty((size, 0)), features)


def answers(trainer):
    """What is asked of a model that ranks."""
    rows = [*batches(trainer.model, (20, 7))]
    return (
        trainer.evaluate(rows, k=(5, 10)),
        trainer.evaluate(rows, k=5, negatives=20),
        *trainer.recommend(rows, 5),
        trainer.predict(rows),
        trainer.item_vectors(),
        trainer.query_vectors(rows),
    )


def trained(name, comm, shard, folder):
    trainer = st.Trainer(MODELS[name](), ADAM, seed=3, parallel=Group(comm, shard, 2))
    trainer.compile(scores=True)
    losses = [float(trainer.step(batch)) for batch in batches(trainer.model)]
    found = answers(trainer)
    trainer.save(folder)
    return losses, found


def same(one, other):
    for a, b in zip(one, other, strict=True):
        if isinstance(a, np.ndarray):
            assert a.tobytes() == b.tobytes()
        else:
            assert a == b


@pytest.mark.parametrize("name", slow_except([QUICK], [*MODELS]))
def test_two_ranks_give_the_bits_of_one(tmp_path, name):
    runs = {}
    for size, shard in ((1, "auto"), (2, "row"), (2, "table")):
        folder = tmp_path / f"{size} {shard}"
        results = all_of(run_ranks(size, lambda c: trained(name, c, shard, folder)))  # noqa: B023
        for losses, found in results[1:]:
            assert losses == results[0][0]
            same(found, results[0][1])
        runs[folder] = results[0]
    (first, (losses, found)), *others = runs.items()
    for folder, (their_losses, theirs) in others:
        assert their_losses == losses
        same(theirs, found)
        arrays, expected = (read_checkpoint(each)[0] for each in (folder, first))
        assert arrays.keys() == expected.keys()
        for array in arrays:
            assert arrays[array].tobytes() == expected[array].tobytes(), array
    same(answers(st.load(first)), found)


def test_ranks_compute_no_dead_rows(monkeypatch):
    def step(comm):
        model = MODELS["masked sequences, every item a class"]()
        trainer = st.Trainer(model, ADAM, seed=3, parallel=Group(comm, "row", 2))
        losses = [float(trainer.step(batch)) for batch in batches(model)]
        return losses[0], losses, trainer.training_step._cut[0].spared

    (one,), (two, other) = (all_of(run_ranks(size, step)) for size in (1, 2))
    assert one[:2] == two[:2] == other[:2]
    assert "relax.matmul" in {each.operator for each in two[2]}
    monkeypatch.setenv("SPARSETRAIN_KEEP_DEAD_ROWS", "1")
    ((first, _, none),) = all_of(run_ranks(1, step))
    assert first == one[0]
    assert not none


def test_a_run_validates_by_ranking_alike_on_one_and_two_ranks():
    split = st.data.Interactions(
        np.repeat(np.arange(20), 6), np.random.default_rng(0).zipf(1.3, 120) % 30, np.arange(120)
    ).leave_one_out()
    encoder = split.encoder()
    rows = dict(zip(encoder.columns, encoder.rows, strict=True))

    def fitted(comm):
        model = st.models.TwoTowers(rows, dim=8, hidden=(8,))
        group = Group(comm, "row", 2)
        trainer = st.Trainer(model, ADAM, seed=3, encoder=encoder, parallel=group)
        history = trainer.fit(
            split.train, validation=split.valid, epochs=2, batch_size=16, k=5, progress=None
        )
        return [epoch["valid"] for epoch in history["epochs"]], trainer.evaluate(split.test)

    (one,), (two, other) = (all_of(run_ranks(size, fitted)) for size in (1, 2))
    assert one == two == other
