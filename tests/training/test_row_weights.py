# SPDX-License-Identifier: Apache-2.0
"""Weights of rows: the loss is that of each row times its weight, over the number of rows."""

import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import sparsetrain as st
from sparsetrain.cli import main
from sparsetrain.data import Batch
from sparsetrain.data.batch import micro_batches
from sparsetrain.errors import ConfigError, DataError
from tests import small_dlrm
from tests.small_dlrm import assert_same_state

NO_WEIGHT = {
    "negative": (-1.0, r"row 2: the weight is -1"),
    "not finite": (np.inf, r"row 2: (the weight is inf|.*inf)"),
    "NaN": (np.nan, r"row 2: .*(nan|NaN)"),
}


def model(kind: str = "single") -> st.models.DLRM:
    options = small_dlrm.KINDS[kind]
    return st.models.DLRM(
        small_dlrm.ROWS, dim=8, bottom=(16,), top=(16,), row_weights=True, num_dense=13, **options
    )


@pytest.fixture(scope="module")
def compiled() -> dict[str, st.Trainer]:
    return {kind: st.Trainer(model(kind), st.optim.sgd(0.0)) for kind in ("single", "weighted")}


@pytest.fixture
def trainer(compiled):
    def make(kind="single", optimizer=None, encoder=None, **options) -> st.Trainer:
        made = st.Trainer(
            model(kind), optimizer or st.optim.sgd(0.5), seed=3, encoder=encoder, **options
        )
        made.program, made._logits = compiled[kind].program, compiled[kind]._logits
        return made

    return make


def weighed(batch: Batch, weights) -> Batch:
    return Batch(batch.dense, batch.ids, batch.labels, np.asarray(weights, np.float32))


@pytest.mark.parametrize("kind", ["single", "weighted"])
def test_the_loss_is_the_mean_of_each_rows_times_its_weight(trainer, kind):
    batch = small_dlrm.batch(33, kind=kind)
    weights = np.random.default_rng(0).gamma(1.0, size=33).astype(np.float32)
    one = trainer(kind)
    z = one._score(batch)[:, 0].astype(np.float64)
    each = np.logaddexp(0, z) - z * batch.labels
    assert float(one.step(weighed(batch, weights))) == pytest.approx(
        float((weights * each).mean()), rel=1e-6
    )


@pytest.mark.parametrize("accumulate", [1, 3])
def test_a_weight_of_two_is_the_row_given_twice(trainer, accumulate):
    batch = small_dlrm.batch(24)
    weights = np.repeat([0.0, 1.0, 2.0], 8)
    twice = np.repeat(np.arange(24), weights.astype(int))
    assert len(twice) == 24  # so that both losses are divided by as many rows
    left, right = (
        trainer(accumulate=accumulate),
        small_dlrm.trainer(optimizer=st.optim.sgd(0.5), seed=3),
    )
    left.step(weighed(batch, weights))
    right.step(Batch(batch.dense[twice], batch.ids[twice], batch.labels[twice]))
    for name, array in right.state_dict().items():
        np.testing.assert_allclose(left.state_dict()[name], array, rtol=2e-5, atol=2e-6)


def test_weights_of_one_change_nothing(trainer):
    left, right = trainer(), small_dlrm.trainer(optimizer=st.optim.sgd(0.5), seed=3)
    for number in range(3):
        batch = small_dlrm.batch(32, number)
        left.step(weighed(batch, np.ones(32)))
        right.step(batch)
    for name, array in right.state_dict().items():
        np.testing.assert_allclose(left.state_dict()[name], array, rtol=1e-6, atol=1e-7)


def test_a_batch_and_its_model_agree_about_weights(trainer):
    batch = small_dlrm.batch(8)
    with pytest.raises(DataError, match=r"no weights of rows.*Batch\(\.\.\., weights=w\)"):
        trainer().step(batch)
    with pytest.raises(DataError, match="this model would not read: make it with row_weights=True"):
        small_dlrm.trainer().step(weighed(batch, np.ones(8)))
    assert trainer().evaluate([batch])["rows"] == 8  # scores need none


@pytest.mark.parametrize("what", NO_WEIGHT)
def test_a_number_that_is_no_weight_is_refused(what):
    value, said = NO_WEIGHT[what]
    weights = np.ones(8)
    weights[2] = value
    batch = small_dlrm.batch(8)
    with pytest.raises(DataError, match=f"weights: {said}"):
        weighed(batch, weights)
    table = {**small_dlrm.raw_rows(300), "w": [1.0, 1.0, value] + [1.0] * 297}
    with pytest.raises(DataError, match=f"column w.*{said[6:]}"):
        encoder("w").encode(table)


def test_other_shapes_of_weights_are_refused():
    with pytest.raises(DataError, match=r"weights must be \(8,\) as dense has it"):
        weighed(small_dlrm.batch(8), np.ones((8, 1)))


def encoder(column: str | None = None, **options) -> st.data.Encoder:
    raw = {**small_dlrm.raw_rows(300), "w": [1.0] * 300}
    return st.data.Encoder.fit(raw, min_count=1, weights=column, **options)


def test_a_batch_of_weights_says_so_and_is_split_with_them():
    batch = weighed(small_dlrm.batch(8), np.arange(8))
    assert repr(batch).endswith("labels=yes, weights=yes>")
    assert [part.weights.tolist() for part in micro_batches(batch, 2)] == [
        [0, 1, 2, 3],
        [4, 5, 6, 7],
    ]
    assert not batch.weights.flags.writeable


def rows(count: int, seed: int) -> dict[str, list]:
    raw = small_dlrm.raw_rows(count, seed=seed)
    return {**raw, "w": [0.5 + (number % 7) for number in range(count)]}


def test_weights_are_read_from_a_column_and_keep_to_their_rows():
    """The first dense column tells which row it is, also where rows are mixed."""
    data = rows(300, 1)
    data["I1"] = list(range(300))
    by_row = dict(zip(encoder("w").encode(data).dense[:, 0].tolist(), data["w"], strict=True))
    dataset = st.data.Dataset(data, encoder("w"))
    for options in ({}, {"seed": 5}):
        for batch in dataset.batches(64, **options):
            found = [by_row[value] for value in batch.dense[:, 0].tolist()]
            assert batch.weights.tolist() == found


def test_training_on_a_column_is_training_on_its_batches(trainer):
    known = encoder("w")
    data = rows(96, 1)
    left, right = trainer(encoder=known), trainer(encoder=known)
    left.fit(data, validation=small_dlrm.raw_rows(20), batch_size=32, shuffle=False, progress=None)
    right.fit(known_batches(known, data), progress=None)
    assert_same_state(left.state_dict(), right.state_dict())


@pytest.mark.parametrize("weight", [None, -1.0, "much", [1.0]])
def test_scores_read_no_weights(trainer, weight):
    plain = small_dlrm.raw_rows(60)
    one = trainer(encoder=encoder("w"))
    expected = one.evaluate(plain)
    odd = {**plain, "w": [weight] * 60}
    assert one.evaluate(odd) == expected
    history = one.fit(rows(96, 1), validation=odd, batch_size=32, progress=None)
    assert history["epochs"][-1]["valid"]["rows"] == 60
    with pytest.raises(DataError, match="column w"):
        one.fit(odd, batch_size=32, progress=None)


def test_scores_are_weighted_where_it_is_asked(trainer):
    one, data = trainer(encoder=encoder("w")), rows(300, 1)
    found, plain = one.evaluate(data, by_weights=True), one.evaluate(data)
    label = np.array(data["label"])
    chances = one.predict(data)
    losses = -np.log(np.where(label == 1, chances, 1 - chances))
    assert found["logloss"] == pytest.approx(np.average(losses, weights=data["w"]), rel=1e-5)
    assert (found["rows"], plain["rows"]) == (300, 300) and found["auc"] != plain["auc"]
    with pytest.raises(
        DataError, match="by_weights: these rows have no weights: set their column with Encoder.fit"
    ):
        one.evaluate(small_dlrm.raw_rows(20), by_weights=True)


def known_batches(known: st.data.Encoder, data: dict) -> list[Batch]:
    cut = range(0, 96, 32)
    return [
        known.encode({name: values[at : at + 32] for name, values in data.items()}) for at in cut
    ]


def test_training_data_without_the_column_is_refused():
    with pytest.raises(DataError, match="column weight: the weight column is missing"):
        st.data.Encoder.fit(rows(300, 1), weights="weight")
    with pytest.raises(ConfigError, match="weights: 'I1' is a label, dense or category column"):
        st.data.Schema(dense=("I1",), categories=("C1",), weights="I1")


def test_files_of_which_one_lacks_the_column_are_refused(tmp_path):
    both, lacking = pa.table(rows(60, 1)), pa.table(small_dlrm.raw_rows(60))
    for name, table in {"a": both, "b": lacking}.items():
        pq.write_table(table, tmp_path / f"{name}.parquet")
    paths = [str(tmp_path / "a.parquet"), str(tmp_path / "b.parquet")]
    with pytest.raises(DataError, match=r"b.parquet.*column w.*is missing in this"):
        st.data.Dataset(paths, encoder("w"))
    assert next(iter(st.data.Dataset(paths[1], encoder("w")).batches(8))).weights is None


def test_an_encoder_keeps_its_column_and_others_keep_their_digest():
    known = encoder("w")
    assert st.data.Encoder.from_state(*known.to_state()).schema.weights == "w"
    assert "weights" not in encoder().to_state()[0]["schema"]


def test_converted_rows_keep_their_weights(tmp_path):
    pq.write_table(pa.table(rows(300, 1)), tmp_path / "raw.parquet")
    st.data.convert_files(str(tmp_path / "raw.parquet"), tmp_path / "out", min_count=1, weights="w")
    converted = st.data.Encoder.fit(str(tmp_path / "out"))
    (batch,) = st.data.Dataset(str(tmp_path / "out"), converted).batches(300)
    assert batch.weights.tolist() == rows(300, 1)["w"]


def test_train_takes_a_column_and_goes_on_with_it(tmp_path, capsys):
    pq.write_table(pa.table(rows(300, 1)), tmp_path / "train.parquet")
    pq.write_table(pa.table(small_dlrm.raw_rows(60)), tmp_path / "valid.parquet")
    run = str(tmp_path / "run")
    files = [str(tmp_path / "train.parquet"), "--valid", str(tmp_path / "valid.parquet")]
    small = ["--set", "model.dim=4", "--set", "model.bottom=8", "--set", "model.top=8"]
    assert main(["train", *files, *small, "--weights", "w", "--out", run, "--json"]) == 0
    printed = capsys.readouterr()
    assert "rows are weighted by w in the training loss; scores are unweighted" in printed.err
    assert json.loads(printed.out)["settings"]["data"]["weights"] == "w"
    assert main(["train", "--resume", run, "--epochs", "2"]) == 0
    assert main(["evaluate", run, str(tmp_path / "valid.parquet")]) == 0
    assert main(["evaluate", run, files[0], "--by-weights"]) == 0
    assert main(["evaluate", run, str(tmp_path / "valid.parquet"), "--by-weights"]) == 3
    assert st.load(run).model.config()["row_weights"] is True
