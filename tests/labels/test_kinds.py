# SPDX-License-Identifier: Apache-2.0
"""Kinds of labels as values: words and checks, and counts and quantiles from loss to scores."""

import json

import numpy as np
import pytest

import sparsetrain as st
from sparsetrain.cli import main
from sparsetrain.data import Batch, Schema
from sparsetrain.errors import ConfigError, DataError
from sparsetrain.labels import (
    Binary,
    Classes,
    Count,
    DevianceMetrics,
    Labels,
    PinballMetrics,
    Quantiles,
    Real,
    label_of,
)
from sparsetrain.labels.label import LABELS
from sparsetrain.serving.model_inputs import function_of
from tests.training.test_labels import Linear, drawn, trainer_of

KINDS = {
    "binary": Binary(),
    "real": Real(),
    "count": Count(),
    "quantiles:0.1,0.9": Quantiles(0.1, 0.9),
    3: Classes(3),
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_kind_is_a_word_and_a_value(kind):
    label = label_of(kind)
    assert label == KINDS[kind] and label.kind == kind and label_of(label) is label
    assert Schema(labels={"y": label}) == Schema(labels={"y": kind})
    assert Schema.from_dict(Schema(labels={"y": label}).to_dict()).labels == {"y": kind}
    assert label.bad(np.array([np.nan, 0.0, 1.0])).tolist() == [True, False, False]


@pytest.mark.parametrize(
    "kind", ["reel", "binary:1", "quantiles", "quantiles:0.9,0.1", "quantiles:0,x", 1, True, None]
)
def test_no_other_kind_is_taken(kind):
    with pytest.raises(ConfigError, match=r"y is .*'binary', .* 'real' or a number of classes"):
        Schema(labels={"y": kind})


@pytest.mark.parametrize(
    ("kind", "value", "message"),
    [
        ("binary", 0.5, "it must be 0 or 1"),
        ("real", np.inf, "it must be a number that is finite in float32"),
        ("count", -1.0, "the label is -1; it must be 0 or more"),
        ("quantiles:0.5", np.inf, "it must be a number that is finite"),
        (3, 3.0, "it must be a class below 3"),
    ],
)
def test_a_label_of_another_kind_is_refused_by_row(kind, value, message):
    with pytest.raises(DataError, match=f"labels: row 1: .*{message}"):
        Labels({"y": kind}).check(np.array([1.0, value], np.float32))


def test_predictions_are_named_after_labels_classes_and_levels():
    several = Labels({"click": "binary", "genre": 2, "delay": "quantiles:0.1,0.9"})
    assert several.output_names == ["click", "genre_0", "genre_1", "delay_0.1", "delay_0.9"]
    assert several.columns["delay"] == slice(3, 5) and several.num_logits == 5
    assert [Labels({"y": kind}).output_names[0] for kind in KINDS] == [
        *("probability", "prediction", "prediction", "prediction_0.1", "probability_0")
    ]


def test_losses_of_counts_and_quantiles_and_their_gradients_are_those_of_float64():
    rng = np.random.default_rng(1)
    dense, ids = rng.normal(size=(11, 3)).astype(np.float32), np.zeros((11, 1), int)
    wanted = np.stack([rng.poisson(1.5, 11), rng.normal(size=11)], 1).astype(np.float32)
    wanted[::3, 0] = np.nan
    labels = {"visits": "count", "delay": "quantiles:0.2,0.7"}
    trainer = st.Trainer(Linear([5], labels=labels), st.optim.sgd(1.0), seed=2)
    before = {name: array.astype(np.float64) for name, array in trainer.state_dict().items()}
    batch = Batch(dense, ids, wanted)
    scores, predicted = trainer.evaluate([batch]), trainer.predict([batch])
    loss, after = float(trainer.step(batch)), trainer.state_dict()

    read = np.concatenate([dense, before["embeddings.C1.weight"][ids[:, 0]]], axis=1)
    z = read @ before["last.weight"].T + before["last.bias"]
    known, y = ~np.isnan(wanted[:, 0]), np.nan_to_num(wanted[:, 0]).astype(np.float64)
    means, levels = np.exp(z[:, 0]), np.array([0.2, 0.7])
    count = (means - y * z[:, 0] + y * np.log(np.where(y > 0, y, 1)) - y) * known
    error = wanted[:, 1:] - z[:, 1:]
    pinball = np.where(error > 0, levels * error, (levels - 1) * error)
    total = (count.sum() + pinball.mean(axis=1).sum()) / 11
    slope = np.stack([(means - y) * known, *(-np.where(error > 0, levels, levels - 1) / 2).T], 1)
    assert loss == pytest.approx(total, rel=1e-5)
    assert scores["loss"] == pytest.approx(total, rel=1e-5)
    np.testing.assert_allclose(predicted, np.column_stack([means, z[:, 1:]]), rtol=1e-5)
    moved = before["last.weight"] - after["last.weight"]
    np.testing.assert_allclose(moved, slope.T @ read / 11, rtol=1e-5, atol=1e-6)


def fed(metrics, predictions, labels):
    """Feed rows in two parts to two metrics that are then merged."""
    other = type(metrics)(*([metrics._levels] if hasattr(metrics, "_levels") else []))
    for part, rows in ((metrics, slice(0, 90)), (other, slice(90, None))):
        part.update(predictions[rows], labels[rows])
    metrics.merge(other)
    return metrics.result()


def test_deviance_is_that_of_scikit_learn():
    peers = pytest.importorskip("sklearn.metrics")
    rng = np.random.default_rng(3)
    logits = rng.normal(size=400)
    labels = rng.poisson(np.exp(logits)).astype(float)
    found = fed(DevianceMetrics(), logits, labels)
    constant = np.full(400, labels.mean())
    wanted = {
        "deviance": peers.mean_poisson_deviance(labels, np.exp(logits)),
        "rows": 400,
        "constant_deviance": peers.mean_poisson_deviance(labels, constant),
        "mean_label": labels.mean(),
        "mean_prediction": np.exp(logits).mean(),
    }
    assert found == pytest.approx(wanted, rel=1e-12) and [*found] == [*DevianceMetrics.SCORES]
    assert set(DevianceMetrics().result().values()) == {None, 0}


def test_pinball_loss_is_that_of_scikit_learn():
    peers = pytest.importorskip("sklearn.metrics")
    rng = np.random.default_rng(3)
    levels, labels = (0.1, 0.5, 0.9), rng.normal(size=400)
    quantiles = rng.normal([-1, 0, 1], 0.1, (400, 3))
    found = fed(PinballMetrics(levels), quantiles, labels)
    each = [
        peers.mean_pinball_loss(labels, own, alpha=level)
        for own, level in zip(quantiles.T, levels, strict=True)
    ]
    inside = (quantiles[:, 0] <= labels) & (labels <= quantiles[:, 2])
    wanted = {
        "pinball": np.mean(each),
        "coverage": inside.mean(),
        "rows": 400,
        "mean_label": labels.mean(),
    }
    assert found == pytest.approx(wanted, rel=1e-12) and [*found] == [*PinballMetrics.SCORES]
    assert set(PinballMetrics(levels).result().values()) == {None, 0}


@pytest.mark.parametrize(
    ("predictions", "labels", "kind", "message"),
    [
        ([[0.0, 1.0]], [np.nan], DataError, "row 2: the label is nan"),
        ([[0.0, 1.0], [0.0, np.inf]], [0.0, 0.0], st.errors.NumericalError, "row 3: the predicti"),
        ([0.0], [0.0], ConfigError, r"predictions \(1,\) and labels \(1,\)"),
    ],
)
def test_bad_rows_change_nothing(predictions, labels, kind, message):
    metrics = PinballMetrics((0.1, 0.9))
    metrics.update(np.zeros((2, 2)), np.zeros(2))
    before = metrics.result()
    with pytest.raises(kind, match=message):
        metrics.update(np.array(predictions), np.array(labels))
    assert metrics.result() == before


def visits(rows=600):
    table = drawn(rows)
    rng = np.random.default_rng(5)
    table["visits"] = rng.poisson(np.exp(table["stars"] - 3))
    table["stars"] += rng.normal(size=rows)
    return table


def test_counts_and_quantiles_are_learnt_and_saved(tmp_path):
    table = visits()
    labels = {"visits": "count", "stars": "quantiles:0.1,0.9"}
    trainer = trainer_of(table, labels)
    trainer.fit(table, validation=table, epochs=12, batch_size=32)
    scores = trainer.evaluate(table)
    assert scores["visits.deviance"] < 0.8 * scores["visits.constant_deviance"]
    assert 0.6 < scores["stars.coverage"] < 0.97
    trainer.save(tmp_path / "run")
    loaded = st.load(tmp_path / "run")
    assert loaded.prediction_names == ["visits", "stars_0.1", "stars_0.9"]
    np.testing.assert_array_equal(loaded.predict(table), trainer.predict(table))


def test_the_command_trains_on_counts(tmp_path, capsys):
    table = visits()[["user", "item", "x", "visits"]]
    table.to_parquet(tmp_path / "rows.parquet")
    schema = Schema(categories=("user", "item"), dense=("x",), labels={"visits": "count"})
    (tmp_path / "schema.toml").write_text(schema.to_toml())
    rows, run = str(tmp_path / "rows.parquet"), str(tmp_path / "run")
    code = main(
        ["train", rows, "--valid", rows, "--schema", str(tmp_path / "schema.toml"), "--out", run]
        + ["--epochs", "2", "--json"]
    )
    found = json.loads(capsys.readouterr().out)
    assert code == 0 and found["valid"]["deviance"] > 0
    assert main(["evaluate", run, rows]) == 0
    assert "deviance" in capsys.readouterr().out


@pytest.mark.parametrize("label", ["count", Quantiles(0.1, 0.9)])
def test_the_regressor_predicts_means_of_counts_and_quantiles(label, tmp_path):
    pytest.importorskip("sklearn")
    from sparsetrain.sklearn import RatingRegressor

    table = visits()
    frame, y = table[["user", "item", "x"]], table["visits" if label == "count" else "stars"]
    model = RatingRegressor(label=label, epochs=12, lr=0.1, random_state=0).fit(frame, y)
    found = model.predict(frame)
    if label == "count":
        assert found.shape == (600,) and found.mean() == pytest.approx(y.mean(), rel=0.2)
    else:
        inside = (found[:, 0] <= y) & (y <= found[:, 1])
        assert 0.6 < inside.mean() < 0.97
    model.save(tmp_path / "kept")
    again = RatingRegressor.load(tmp_path / "kept", label=label)
    np.testing.assert_array_equal(again.predict(frame), found)
    with pytest.raises(st.errors.CheckpointError, match="must have one real label"):
        RatingRegressor.load(tmp_path / "kept")


def test_a_kind_of_ones_own_is_one_class(monkeypatch):
    monkeypatch.setitem(LABELS, "absolute", Real)  # is left out again afterwards

    class Absolute(Real):
        word = "absolute"

        def loss(self, op, logits, labels):
            return op.maximum(logits - labels, labels - logits)

    model = Linear([5], labels={"y": "absolute"})
    assert model.all_labels.only == Absolute() and model.config()["labels"] == {"y": "absolute"}
    batch = Batch(np.zeros((2, 3), np.float32), np.zeros((2, 1), int), np.array([3.0, -3.0]))
    trainer = st.Trainer(model, st.optim.sgd(1.0))
    assert float(trainer.step(batch)) == pytest.approx(3.0, rel=0.1)


def test_exports_refuse_kinds_that_they_do_not_answer():
    trainer = trainer_of(visits(40), {"visits": "count"})
    with pytest.raises(ConfigError, match="label 'visits' is count; an export supports"):
        function_of(trainer.model)
