# SPDX-License-Identifier: Apache-2.0
"""Real labels and several labels, of which a row may lack some: from the data to the scores."""

import json

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest
from tvm.relax.frontend import nn

import sparsetrain as st
from sparsetrain.cli import main
from sparsetrain.data import Batch, Encoder, Schema
from sparsetrain.errors import ConfigError, DataError
from sparsetrain.models import ClickModel
from tests.helpers import slow_except

LABELS = {"click": "binary", "like": "binary", "stars": "real"}
COLUMNS = {"categories": ("user", "item"), "dense": ("x",), "linear": {"x": st.data.Linear()}}


class Linear(ClickModel):
    def __init__(self, rows, dim=4, num_dense=3, **rest):
        super().__init__(rows, dim, num_dense, **rest)
        self.last = nn.Linear(num_dense + len(rows) * dim, self.num_logits)

    def forward(self, dense, embedded):
        flat = nn.op.reshape(embedded, (dense.shape[0], -1))
        return self.last(nn.op.concat([dense, flat], dim=1))


def drawn(rows=400, seed=0):
    rng = np.random.default_rng(seed)
    user, item, x = rng.integers(0, 9, rows), rng.integers(0, 7, rows), rng.normal(size=rows)
    score = np.sin(user) + np.cos(item) + 0.5 * x
    table = pd.DataFrame({"user": user.astype(str), "item": item.astype(str), "x": x})
    table["stars"] = 3 + score
    for name, level in {"click": 0.0, "like": 1.0}.items():
        table[name] = (rng.random(rows) < 1 / (1 + np.exp(level - score))).astype(float)
    table.loc[rng.random(rows) < 0.5, "like"] = np.nan
    return table


def trainer_of(table, labels=None, **options):
    encoder = Encoder.fit(table, min_count=1, schema=Schema(**COLUMNS, labels=labels or LABELS))
    model = st.models.DLRM(
        encoder.rows, 4, (8,), (8,), encoder.num_dense, names=encoder.columns, labels=encoder.labels
    )
    return st.Trainer(model, st.optim.adagrad(0.1), encoder=encoder, **options)


OF_LABELS = [({"stars": "real"}, False), (LABELS, False), (LABELS, True)]


@pytest.mark.parametrize(("labels", "weighed"), slow_except([(LABELS, True)], OF_LABELS))
def test_the_loss_and_its_gradients_are_those_of_float64(labels, weighed):
    rng = np.random.default_rng(1)
    dense, ids = rng.normal(size=(11, 3)).astype(np.float32), rng.integers(0, 5, (11, 2))
    wanted = np.where(
        [kind == "binary" for kind in labels.values()],
        rng.integers(0, 2, (11, len(labels))),
        rng.normal(size=(11, len(labels))),
    ).astype(np.float32)
    if len(labels) > 1:
        wanted[::2, 1] = np.nan
    weights = rng.gamma(1.0, size=11).astype(np.float32) if weighed else None
    given = wanted if len(labels) > 1 else wanted[:, 0]
    trainer = st.Trainer(
        Linear([5, 5], labels=labels, row_weights=weighed), st.optim.sgd(1.0), seed=2
    )
    before = {name: array.astype(np.float64) for name, array in trainer.state_dict().items()}
    loss = float(trainer.step(Batch(dense, ids, given, weights)))
    after = trainer.state_dict()

    tables = [before["embeddings.C1.weight"], before["embeddings.C2.weight"]]
    read = np.concatenate([dense, *(table[ids[:, f]] for f, table in enumerate(tables))], axis=1)
    logits = read @ before["last.weight"].T + before["last.bias"]
    click = np.array([kind == "binary" for kind in labels.values()])
    factor = np.where(np.isnan(wanted), 0, 1.0 if weights is None else weights[:, None]) / 11
    y = np.nan_to_num(wanted)
    each = np.where(click, np.logaddexp(0, logits) - logits * y, (logits - y) ** 2)
    slope = np.where(click, 1 / (1 + np.exp(-logits)) - y, 2 * (logits - y)) * factor
    assert loss == pytest.approx((each * factor).sum(), rel=1e-5)
    of_read = slope @ before["last.weight"]
    gradients = {"last.weight": slope.T @ read, "last.bias": slope.sum(axis=0)}
    for feature in range(2):
        gradient = np.zeros((5, 4))
        np.add.at(gradient, ids[:, feature], of_read[:, 3 + 4 * feature : 7 + 4 * feature])
        gradients[f"embeddings.C{feature + 1}.weight"] = gradient
    for name, gradient in gradients.items():
        np.testing.assert_allclose(before[name] - after[name], gradient, rtol=1e-5, atol=1e-6)


def test_classes_and_weights_of_labels_follow_the_formulas_in_float64():
    rng = np.random.default_rng(1)
    dense, ids = rng.normal(size=(11, 3)).astype(np.float32), np.zeros((11, 1), int)
    wanted = np.stack([rng.integers(0, 3, 11), rng.normal(size=11)], 1).astype(np.float32)
    wanted[::2, 0] = np.nan
    kinds, weights = {"genre": 3, "stars": "real"}, {"stars": 0.25}
    model = Linear([5], labels=kinds, label_weights=weights)
    trainer = st.Trainer(model, st.optim.sgd(1.0), seed=2)
    before = {name: array.astype(np.float64) for name, array in trainer.state_dict().items()}
    batch = Batch(dense, ids, wanted)
    scores, predicted = trainer.evaluate([batch]), trainer.predict([batch])
    loss, after = float(trainer.step(batch)), trainer.state_dict()

    read = np.concatenate([dense, before["embeddings.C1.weight"][ids[:, 0]]], axis=1)
    logits = read @ before["last.weight"].T + before["last.bias"]  # 3 of the genre, 1 of the stars
    p, known = np.exp(logits[:, :3]), ~np.isnan(wanted[:, 0])
    p /= p.sum(axis=1, keepdims=True)
    hot = np.nan_to_num(wanted[:, :1]) == np.arange(3)
    own = -np.log(p[hot]) * known
    error = logits[:, 3] - wanted[:, 1]
    total = (own.sum() + 0.25 * (error**2).sum()) / 11
    slope = np.concatenate([(p - hot) * known[:, None], 0.5 * error[:, None]], axis=1) / 11
    assert loss == pytest.approx(total, rel=1e-5)
    assert scores["loss"] == pytest.approx(total, rel=1e-5)
    assert scores["genre.accuracy"] == (p.argmax(1) == hot.argmax(1))[known].mean()
    np.testing.assert_allclose(predicted, np.concatenate([p, logits[:, 3:]], 1), rtol=1e-5)
    moved = before["last.weight"] - after["last.weight"]
    np.testing.assert_allclose(moved, slope.T @ read, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        ({"a": 1}, "label_weights: there is no label 'a': labels are label"),
        ({"label": -1}, "s.label is"),
    ],
)
def test_weights_of_no_label_and_negative_ones_are_refused(weights, message):
    with pytest.raises(ConfigError, match=message):
        st.Trainer(Linear([5], label_weights=weights), st.optim.sgd(0.1))


def test_parts_of_a_batch_make_the_step_of_the_whole():
    table = drawn()
    found = []
    for parts in (1, 3):
        trainer = trainer_of(table, accumulate=parts)
        for batch in st.data.Dataset(table, trainer.encoder).batches(100):
            trainer.step(batch)
        found.append(trainer.state_dict())
    for name, array in found[0].items():
        np.testing.assert_allclose(found[1][name], array, rtol=1e-4, atol=1e-5)


def test_a_run_is_saved_resumed_to_the_same_bits_loaded_and_quantized(tmp_path):
    table = drawn()
    whole, parted = trainer_of(table), trainer_of(table)
    history = whole.fit(table, validation=table, epochs=3, run=tmp_path / "whole")
    parted.fit(table, validation=table, epochs=1, run=tmp_path / "parted")
    parted = st.load(tmp_path / "parted")
    parted.fit(table, validation=table, epochs=3, run=tmp_path / "parted", resume=True)
    for name, array in whole.state_dict().items():
        np.testing.assert_array_equal(array, parted.state_dict()[name])
    assert (
        st.Run(tmp_path / "whole").log()[-1]["like.auc"]
        == history["epochs"][-1]["valid"]["like.auc"]
    )
    predicted = whole.predict(table)
    assert predicted.shape == (400, 3)
    np.testing.assert_array_equal(st.load_predictor(tmp_path / "whole").predict(table), predicted)
    scores = whole.evaluate(table)
    assert scores["stars.rmse"] == pytest.approx(
        np.sqrt(np.mean((predicted[:, 2] - table["stars"]) ** 2)), rel=1e-5
    )
    assert scores["stars.rmse"] < scores["stars.constant_rmse"]
    assert scores["like.rows"] == table["like"].notna().sum()
    whole.quantized().save(tmp_path / "int8")
    small = st.load_predictor(tmp_path / "int8").evaluate(table)
    assert small["click.auc"] == pytest.approx(scores["click.auc"], abs=0.01)


def test_a_real_label_is_predicted_as_it_is_and_watched_by_its_error():
    table = drawn()
    trainer = trainer_of(table, {"stars": "real"})
    stopping = st.EarlyStopping(patience=2)
    history = trainer.fit(table, validation=table, epochs=4, early_stopping=stopping)
    assert history["best"]["value"] == min(e["valid"]["rmse"] for e in history["epochs"])
    assert trainer.predict(table).shape == (400,) and trainer.predict(table).mean() > 2
    assert set(trainer.evaluate(table)) >= {"rmse", "mae", "constant_rmse"}


def test_labels_come_in_the_order_of_the_schema_and_null_where_they_are_missing():
    table = drawn(5)
    encoder = Encoder.fit(table, min_count=1, schema=Schema(**COLUMNS, labels=LABELS))
    batch = encoder.encode(table[["stars", "x", "like", "item", "click", "user"]])
    wanted = table[["click", "like", "stars"]].to_numpy(np.float32)
    np.testing.assert_array_equal(batch.labels, wanted)
    assert encoder.labels == LABELS


def test_converted_rows_have_the_labels_of_raw_ones(tmp_path):
    table = drawn()
    table.to_parquet(tmp_path / "raw.parquet")
    schema = Schema(**COLUMNS, labels=LABELS)
    done = st.data.convert_files(
        tmp_path / "raw.parquet", tmp_path / "made", min_count=1, schema=schema
    )
    assert done["labels"] == LABELS and done["positive"] is None
    raw, made = (
        list(st.data.Dataset(str(tmp_path / name), encoder).batches(400))[0].labels
        for encoder in [Encoder.fit(str(tmp_path / "made"))]
        for name in ("raw.parquet", "made")
    )
    np.testing.assert_array_equal(raw, made)


def test_the_command_trains_evaluates_predicts_and_draws(tmp_path, capsys):
    drawn().to_parquet(tmp_path / "d.parquet")
    kinds = "".join(f'{name} = "{kind}"\n' for name, kind in LABELS.items())
    (tmp_path / "s.toml").write_text(
        f'categories = ["user", "item"]\ndense = ["x"]\n[labels]\n{kinds}'
    )
    run, data, out = (str(tmp_path / name) for name in ("run", "d.parquet", "p.parquet"))
    options = ["--schema", str(tmp_path / "s.toml"), "--out", run, "--epochs", "2"]
    small = ["--set", "model.dim=4", "--set", "model.top=8", "--set", "model.bottom=8"]
    watched = ["--patience", "1", "--set", "train.monitor=click.auc"]
    assert main(["train", data, "--valid", data, *options, *small, *watched]) == 0
    printed = capsys.readouterr().out
    assert "valid click.AUC  valid click.logloss  valid like.AUC" in printed
    assert main(["evaluate", run, data]) == 0
    tables = capsys.readouterr().out.split("\n\n")
    assert tables[0].splitlines()[2].split()[:2] == ["d.parquet", "like"]
    assert tables[1].split()[:2] == ["rows", "RMSE"]
    assert main(["predict", run, data, "--out", out, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["mean_stars"] > 1
    assert pq.read_schema(out).names == ["click", "like", "stars"]
    assert main(["plot", run]) == 0
    assert (tmp_path / "run" / "plot.png").stat().st_size > 10_000


@pytest.mark.parametrize(
    ("column", "value", "message"),
    [
        ("like", 0.5, "row 3, column like: the label is 0.5; it must be 0 or 1"),
        ("stars", np.inf, "row 3, column stars: the value is infinite; replace it by"),
        ("stars", 1e300, "row 3, column stars: the label is 1e+300; it must be a number"),
    ],
)
def test_a_label_that_is_none_of_its_kind_is_named(column, value, message):
    table = drawn(6)
    encoder = Encoder.fit(table, min_count=1, schema=Schema(**COLUMNS, labels=LABELS))
    table.loc[3, column] = value
    with pytest.raises(DataError, match=message.replace("+", r"\+")):
        encoder.encode(table)


@pytest.mark.parametrize("value", [3, -1, 0.5])
def test_a_class_that_is_none_is_named(value):
    table = drawn(6).assign(genre=[0, 1, 2, value, 0, 1])
    schema = Schema(**COLUMNS, labels={"genre": 3})
    encoder = Encoder.fit(table, min_count=1, schema=schema)
    message = f"row 3, column genre: the label is {value:g}; it must be a class below 3"
    with pytest.raises(DataError, match=message):
        encoder.encode(table)


@pytest.mark.slow
def test_the_command_scores_and_predicts_classes(tmp_path, capsys):
    table = drawn()
    table["genre"] = pd.qcut(table["stars"], 3, labels=False)
    table.to_parquet(tmp_path / "d.parquet")
    schema = Schema(**COLUMNS, labels={"genre": 3})
    assert Schema.from_dict(schema.to_dict()) == schema
    (tmp_path / "s.toml").write_text(schema.to_toml())
    run, data, out = (str(tmp_path / name) for name in ("run", "d.parquet", "p.csv"))
    options = ["--schema", str(tmp_path / "s.toml"), "--out", run, "--epochs", "9"]
    small = ["--set", "model.dim=4", "--set", "model.top=8", "--set", "model.bottom=8"]
    small += ["--batch-size", "16", "--lr", "0.1"]
    assert main(["train", data, "--valid", data, *options, *small]) == 0
    assert main(["evaluate", run, data]) == 0
    assert capsys.readouterr().out.splitlines()[-2].split()[:3] == ["rows", "accuracy", "logloss"]
    assert main(["predict", run, data, "--out", out]) == 0
    found = pd.read_csv(out)
    assert [*found] == ["probability_0", "probability_1", "probability_2"]
    np.testing.assert_allclose(found.sum(axis=1), 1, rtol=1e-6)
    assert (found.to_numpy().argmax(1) == table["genre"]).mean() > 0.5
    assert st.Run(run).log()[-1]["accuracy"] > 0.5


def test_a_single_label_may_not_be_missing():
    table = drawn(6)
    schema = Schema(**COLUMNS, labels={"stars": "real"})
    encoder = Encoder.fit(table, min_count=1, schema=schema)
    table.loc[2, "stars"] = np.nan
    with pytest.raises(DataError, match="row 2, column stars: the label is null; drop the row or"):
        encoder.encode(table)


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        (
            {"stars": "ordinal"},
            r"labels\.stars is 'ordinal'; it must be 'binary', .*'real' or a",
        ),
        (
            {"stars": 1},
            r"labels\.stars is 1; it must be 'binary', .*'real' or a number of classes",
        ),
        (["stars"], "labels is "),
        ({"x": "real"}, "labels: 'x' is a dense or category column"),
    ],
)
def test_what_is_no_label_of_a_schema_is_refused(labels, message):
    with pytest.raises(ConfigError, match=message):
        Schema(**COLUMNS, labels=labels)


def test_a_label_is_named_once():
    with pytest.raises(ConfigError, match="label and labels are both given; drop label"):
        Schema(**COLUMNS, label="click", labels=LABELS)


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        ([0.0, 2.0], "labels: row 1: the label is 2; it must be 0 or 1"),
        ([[0.0, 1.0], [1.0, 0.0]], "the batch has 2 labels, but the model has 1: label"),
    ],
)
def test_labels_of_another_model_are_refused(labels, message):
    trainer = st.Trainer(Linear([5, 5]), st.optim.sgd(0.1))
    batch = Batch(np.zeros((2, 3)), [[1, 2], [3, 4]], labels)
    for use in (trainer.step, lambda one: trainer.evaluate([one])):
        with pytest.raises(DataError, match=message):
            use(batch)


def test_a_model_has_the_labels_of_its_encoder():
    encoder = Encoder.fit(drawn(9), min_count=1, schema=Schema(**COLUMNS, labels=LABELS))
    model = st.models.DLRM(encoder.rows, num_dense=encoder.num_dense)
    with pytest.raises(ConfigError, match="DLRM: its labels are label .binary., the encoder"):
        st.Trainer(model, st.optim.sgd(0.1), encoder=encoder)


@pytest.mark.parametrize(
    ("labels", "message"),
    [(["stars"], "Linear: labels is "), ({}, "labels is empty"), ({"a": 1}, "labels.a is 1")],
)
def test_what_is_no_label_of_a_model_is_refused(labels, message):
    with pytest.raises(ConfigError, match=message):
        Linear([5], labels=labels)


def test_a_monitor_that_no_label_has_is_refused_before_anything_is_read(capsys):
    assert main(["train", "missing.parquet", "--set", "train.monitor=acu"]) == 2
    assert "train.monitor" in capsys.readouterr().err


def test_a_score_that_these_labels_have_not_is_not_watched():
    table = drawn(20)
    with pytest.raises(ConfigError, match="monitor is 'auc'; the scores are click.auc, click"):
        trainer_of(table).fit(
            table, validation=table, early_stopping=st.EarlyStopping("auc", patience=1)
        )
