# SPDX-License-Identifier: Apache-2.0
"""Streaming scores equal the textbook formulas, whatever the batches."""

import json
import math
import re
from unittest import mock

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from sklearn.metrics import roc_auc_score

from sparsetrain.cli.settings import TrainSettings
from sparsetrain.errors import ConfigError, DataError, NumericalError
from sparsetrain.labels import LabelMetrics, Labels
from sparsetrain.labels.label import LABELS
from sparsetrain.labels.label_metrics import gains, score_names
from sparsetrain.metrics import (
    ClassMetrics,
    ClickMetrics,
    GroupedAUC,
    RegressionMetrics,
    auc,
)
from sparsetrain.metrics.scores import base_name
from sparsetrain.training.fit import EarlyStopping

INF = math.inf


def scored(logits, labels) -> dict:
    metrics = ClickMetrics()
    metrics.update(np.asarray(logits), np.asarray(labels))
    return metrics.result()


def exact_auc(logits, labels) -> float:
    """Share of (click, other) pairs in the right order, by mid-ranks of a sort."""
    z, clicks = np.asarray(logits, np.float32).astype(np.float64), np.asarray(labels) == 1
    _, place, count = np.unique(z, return_inverse=True, return_counts=True)
    ranks = (np.cumsum(count) - 0.5 * (count - 1))[place]
    p, n = clicks.sum(), (~clicks).sum()
    return (ranks[clicks].sum() - p * (p + 1) / 2) / (p * n)


def drawn(rows: int, seed: int = 0, rate: float = 0.25) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    labels = rng.random(rows) < rate
    return (rng.normal(size=rows) + labels).astype(np.float32), labels


LOGITS = {
    "normal": drawn(20_000),
    "rare clicks": drawn(20_000, rate=0.003),
    "close together": (drawn(20_000)[0] * 1e-5, drawn(20_000)[1]),
    "all within one bin": (1.0 + drawn(5000)[0] * 1e-5, drawn(5000)[1]),
    "rounded, so many ties": (np.round(drawn(5000)[0], 1), drawn(5000)[1]),
    "very large": (drawn(5000)[0] * 1e30, drawn(5000)[1]),
    "subnormal": (drawn(5000)[0] * 1e-40, drawn(5000)[1]),
    "float64": (drawn(5000)[0].astype(np.float64) / 3, drawn(5000)[1]),
    "float16": (drawn(5000)[0].astype(np.float16), drawn(5000)[1]),
}


@pytest.fixture
def binned(monkeypatch):
    """Leave no row to sort, as of more than four million."""
    monkeypatch.setattr(auc, "_EXACT_ROWS", 0)


@pytest.mark.parametrize("name", LOGITS)
def test_auc_is_that_of_scikit_learn_and_of_a_sort_to_the_bit(name):
    logits, labels = LOGITS[name]
    result = scored(logits, labels)
    assert (result["auc"], result["auc_bound"]) == (exact_auc(logits, labels), 0.0)
    peer = roc_auc_score(labels, np.float32(logits))
    assert result["auc"] == pytest.approx(peer, rel=0, abs=1e-14)


@pytest.mark.parametrize("name", LOGITS)
def test_auc_of_many_rows_is_within_its_bound_of_the_sorted_one(name, binned):
    logits, labels = LOGITS[name]
    result = scored(logits, labels)
    assert abs(result["auc"] - exact_auc(logits, labels)) <= result["auc_bound"] + 1e-12


@pytest.mark.parametrize("name", ["normal", "rare clicks", "close together"])
def test_the_bound_is_small_for_ordinary_logits(name, binned):
    assert 0 < scored(*LOGITS[name])["auc_bound"] < 1e-4


@given(
    hnp.arrays(np.float32, st.integers(2, 60), elements=st.floats(width=32, allow_nan=False)),
    st.integers(0, 2**32 - 1),
    st.sampled_from([0, 1 << 22]),
)
@settings(max_examples=80, deadline=None)
def test_auc_keeps_its_bound_for_any_floats(logits, seed, exact_rows):
    labels = np.random.default_rng(seed).permutation(len(logits)) % 2
    with mock.patch.object(auc, "_EXACT_ROWS", exact_rows):
        result = scored(logits, labels)
    assert abs(result["auc"] - exact_auc(logits, labels)) <= result["auc_bound"] + 1e-12
    assert result["auc_bound"] == 0 or not exact_rows


@pytest.mark.parametrize("rows", [6000, 6001])
def test_the_number_of_rows_alone_says_whether_auc_is_exact(rows, monkeypatch):
    monkeypatch.setattr(auc, "_EXACT_ROWS", 6000)
    logits, labels = drawn(rows)
    cuts = [[], [1], [5999], range(700, rows, 700)]
    found = [scored(logits, labels)]
    for inner in cuts:
        metrics, parts = ClickMetrics(), [ClickMetrics() for _ in range(len(inner) + 1)]
        for own, z, click in zip(
            parts, np.split(logits, inner), np.split(labels, inner), strict=True
        ):
            metrics.update(z, click)
            own.update(z, click)
        for part in parts[1:]:
            parts[0].merge(part)
        found += [metrics.result(), parts[0].result()]
    assert {(one["auc"], one["auc_bound"], one["rows"]) for one in found} == {
        (found[0]["auc"], found[0]["auc_bound"], rows)
    }
    assert (found[0]["auc_bound"] == 0) == (rows == 6000)


def test_rows_kept_for_a_sort_are_few_bytes_and_none_beyond(monkeypatch):
    monkeypatch.setattr(auc, "_EXACT_ROWS", 20_000)
    order = auc.ClickOrder()
    for _ in range(20_000):
        order.add(np.ones(1, np.float32), np.ones(1, bool))
    assert (len(order._scores), len(order._clicked)) == (20_000, 20_000)
    order.merge(order)
    assert (len(order._scores), len(order._clicked), order.rows) == (0, 0, 40_000)


@pytest.mark.parametrize("exact_rows", [0, 1 << 22])
@pytest.mark.parametrize(
    ("logits", "labels", "wanted"),
    [
        ([1.0, 2.0, 3.0], [0, 0, 1], 1.0),
        ([1.0, 2.0, 3.0], [1, 0, 0], 0.0),
        ([0.5, 0.5, 0.5, 0.5], [1, 0, 1, 0], 0.5),
        ([0.0, -0.0], [0, 1], 0.5),
        ([-1e-45, 0.0], [0, 1], 1.0),
        ([-2.0, -1.0, 1.0], [0, 1, 1], 1.0),
        ([-INF, INF], [0, 1], 1.0),
        ([INF, INF], [0, 1], 0.5),
        ([3e38, INF], [0, 1], 1.0),
        ([1e300, INF], [0, 1], 0.5),  # one number in float32
    ],
)
def test_small_cases_of_auc_are_exact_and_known_to_be(
    logits, labels, wanted, exact_rows, monkeypatch
):
    monkeypatch.setattr(auc, "_EXACT_ROWS", exact_rows)
    result = scored(logits, labels)
    assert (result["auc"], result["auc_bound"]) == (wanted, 0.0)


def test_losses_follow_the_formulas_in_float64():
    logits, labels = drawn(10_000)
    p = 1 / (1 + np.exp(-logits.astype(np.float64)))
    rate = labels.mean()
    logloss = -np.where(labels, np.log(p), np.log1p(-p)).mean()
    constant = -(rate * np.log(rate) + (1 - rate) * np.log(1 - rate))
    result = scored(logits, labels)
    assert result["logloss"] == pytest.approx(logloss, rel=1e-12)
    assert result["constant_logloss"] == pytest.approx(constant, rel=1e-12)
    assert result["ne"] == pytest.approx(logloss / constant, rel=1e-12)
    assert result["calibration"] == pytest.approx(p.mean() / rate, rel=1e-12)
    assert (result["rows"], result["positive_rate"]) == (10_000, rate)


def test_the_constant_itself_has_entropy_one_and_calibration_one():
    labels = np.arange(100) % 4 == 0
    result = scored(np.full(100, math.log(0.25 / 0.75)), labels)
    assert result["ne"] == pytest.approx(1.0, rel=1e-12)
    assert result["calibration"] == pytest.approx(1.0, rel=1e-12)
    assert (result["auc"], result["auc_bound"]) == (0.5, 0.0)


@pytest.mark.parametrize(
    ("logit", "label", "loss"),
    [(800.0, 1, 0.0), (800.0, 0, 800.0), (-800.0, 1, 800.0), (1e300, 0, 1e300)]
    + [(INF, 1, 0.0), (-INF, 0, 0.0), (INF, 0, INF), (-INF, 1, INF)],
)
def test_far_logits_neither_overflow_nor_become_nan(logit, label, loss):
    result = scored([logit], [label])
    assert result["logloss"] == loss


@pytest.mark.parametrize("kind", [np.bool_, np.int32, np.int64, np.uint8, np.float32, np.float64])
def test_labels_may_be_of_any_numeric_type(kind):
    logits, labels = drawn(500)
    assert scored(logits, labels.astype(kind)) == scored(logits, labels)


def test_strided_and_read_only_arrays_give_the_same():
    logits, labels = drawn(1000)
    logits.flags.writeable = False
    assert scored(logits[::2], labels[::2]) == scored(logits[::2].copy(), labels[::2].copy())


def test_the_same_batches_give_the_same_bits():
    logits, labels = drawn(3000)
    results = []
    for _ in range(2):
        metrics = ClickMetrics()
        for start in range(0, 3000, 700):
            metrics.update(logits[start : start + 700], labels[start : start + 700])
        results.append(metrics.result())
    assert results[0] == results[1]
    assert results[0] == pytest.approx(scored(logits, labels), rel=1e-12)


def test_merging_is_associative_and_equals_one_pass():
    logits, labels = drawn(3000)

    def part(start: int) -> ClickMetrics:
        metrics = ClickMetrics()
        metrics.update(logits[start : start + 1000], labels[start : start + 1000])
        return metrics

    left, right, tail = part(0), part(0), part(1000)
    left.merge(part(1000))
    left.merge(part(2000))
    tail.merge(part(2000))
    right.merge(tail)
    counted = ("auc", "auc_bound", "rows", "positive_rate", "constant_logloss")
    assert [left.result()[k] for k in counted] == [right.result()[k] for k in counted]
    assert [left.result()[k] for k in counted] == [scored(logits, labels)[k] for k in counted]
    assert left.result() == pytest.approx(right.result(), rel=1e-12)


def test_merging_leaves_the_other_alone_and_nothing_adds_nothing():
    metrics, other = ClickMetrics(), ClickMetrics()
    metrics.update(*drawn(100))
    before = metrics.result()
    other.merge(metrics)
    metrics.merge(ClickMetrics())
    metrics.update(np.empty(0, np.float32), np.empty(0, bool))
    assert metrics.result() == before == other.result()


@pytest.mark.parametrize(
    ("labels", "missing"),
    [
        ([], set(ClickMetrics().result()) - {"rows"}),
        ([0, 0], {"auc", "auc_bound", "ne", "calibration"}),
        ([1, 1], {"auc", "auc_bound", "ne"}),
    ],
)
def test_a_score_that_does_not_exist_is_none(labels, missing):
    result = scored(np.zeros(len(labels)), np.array(labels, int))
    assert {name for name, value in result.items() if value is None} == missing
    assert json.loads(json.dumps(result, allow_nan=False)) == result


@pytest.mark.parametrize(
    ("logits", "labels", "kind", "message"),
    [
        ([0.0, math.nan], [0, 1], NumericalError, "row 11: the logit is NaN"),
        ([0.0, 0.0], [1, 2], DataError, "row 11: the label is 2, but must be 0 or 1"),
        ([0.0, 0.0], [0.5, 1], DataError, "row 10: the label is 0.5"),
        ([0.0, 0.0], [0.0, math.nan], DataError, "row 11: the label is nan"),
        ([0.0, 0.0], [0], ConfigError, "logits (2,) and labels (1,)"),
        ([[0.0], [0.0]], [[0], [1]], ConfigError, "logits (2, 1) and labels (2, 1)"),
    ],
)
def test_bad_rows_are_named_and_change_nothing(logits, labels, kind, message):
    metrics = ClickMetrics()
    metrics.update(*drawn(10, seed=3))
    before = metrics.result()
    with pytest.raises(kind, match=re.escape(message)):
        metrics.update(np.array(logits), np.array(labels))
    assert metrics.result() == before


def test_regression_scores_are_those_of_numpy_and_merge():
    rng = np.random.default_rng(0)
    labels = 1e6 + rng.normal(size=1_000)  # far from 0, where a sum of squares loses digits
    found = labels + rng.normal(size=1_000, scale=0.3)
    parts = [RegressionMetrics(), RegressionMetrics()]
    for begin in range(0, 1_000, 70):
        parts[begin >= 490].update(found[begin : begin + 70], labels[begin : begin + 70])
    parts[0].merge(parts[1])
    assert parts[0].result() == pytest.approx(
        {
            "rmse": np.sqrt(np.mean((found - labels) ** 2)),
            "mae": np.mean(np.abs(found - labels)),
            "rows": 1_000,
            "constant_rmse": labels.std(),
            "mean_label": labels.mean(),
            "mean_prediction": found.mean(),
        },
        rel=1e-9,
    )


@pytest.mark.parametrize(
    ("predictions", "labels", "kind", "message"),
    [
        ([0.0, math.inf], [0, 1], NumericalError, "row 4: the prediction is inf"),
        ([0.0, 0.0], [math.nan, 1], DataError, "row 3: the label is nan"),
        ([0.0], [0, 1], ConfigError, "predictions (1,) and labels (2,)"),
    ],
)
def test_bad_rows_of_a_regression_change_nothing(predictions, labels, kind, message):
    metrics = RegressionMetrics()
    metrics.update(np.arange(3.0), np.zeros(3))
    before = metrics.result()
    with pytest.raises(kind, match=re.escape(message)):
        metrics.update(np.array(predictions), np.array(labels))
    assert metrics.result() == before


def test_labels_are_scored_one_by_one_where_a_row_has_them():
    rng = np.random.default_rng(0)
    logits, click = rng.normal(size=(40, 2)), (rng.random(40) < 0.4).astype(float)
    stars = rng.normal(size=40)
    stars[::3] = np.nan
    metrics = LabelMetrics({"a.click": "binary", "stars": "real"})
    for rows in (slice(0, 15), slice(15, 40)):
        metrics.update(logits[rows], np.stack([click[rows], stars[rows]], axis=1))
    own, known = ClickMetrics(), ~np.isnan(stars)
    own.update(logits[:, 0], click)
    found = metrics.result()
    assert found["rows"] == 40 and found["stars.rows"] == known.sum() == 26
    for name, value in own.result().items():
        assert found[f"a.click.{name}"] == pytest.approx(value, rel=1e-12)
    squared = ((logits[:, 1] - stars)[known] ** 2).sum()
    assert found["loss"] == pytest.approx(found["a.click.logloss"] + squared / 40, rel=1e-12)


def test_a_bad_row_of_one_label_adds_to_no_other():
    metrics = LabelMetrics({"click": "binary", "stars": "real"})
    metrics.update(np.array([[1.0, 2.0]]), np.array([[1.0, 3.0]]))
    before = metrics.result()
    with pytest.raises(DataError, match="row 1: the label is inf, not finite"):
        metrics.update(np.array([[1.0, 2.0]]), np.array([[0.0, np.inf]]))
    assert metrics.result() == before


def test_a_label_that_no_row_has_has_no_scores():
    metrics = LabelMetrics({"a": "binary", "b": "real"})
    metrics.update(np.zeros((2, 2)), np.array([[1.0, np.nan], [0.0, np.nan]]))
    found = metrics.result()
    assert found["b.rows"] == 0 and found["b.rmse"] is None
    assert found["loss"] == pytest.approx(math.log(2))


@pytest.mark.parametrize(
    "kinds",
    [
        {"a": "binary"},
        {"a": "real"},
        {"a": "real", "b": "binary"},
        {"a": 3},
        {"a": "count"},
        {"a": "quantiles:0.2,0.7", "b": "count"},
        {"a": "quantiles:0.5"},
    ],
)
def test_the_names_of_scores_are_known_without_scoring(kinds):
    assert score_names(Labels(kinds)) == list(LabelMetrics(kinds).result())


def test_every_score_that_can_be_watched_has_a_direction_and_a_setting():
    named = {score for label in LABELS.values() for score in label.scores.SCORES}
    of_rankings = {base_name(name) for name in score_names(Labels({}))}
    assert {*named, *GroupedAUC.SCORES, *of_rankings, "loss"} >= gains().keys()
    assert gains().keys() >= {label.watched for label in LABELS.values()}
    settings = [f"{name}@10" if name in of_rankings else f"click.{name}" for name in gains()]
    assert [TrainSettings(monitor=name).monitor for name in settings] == settings
    better = {"logloss": 0.1, "auc": 0.9, "gauc": 0.9, "calibration": 0.95, "accuracy": 0.9}
    worse = {"logloss": 0.2, "auc": 0.8, "gauc": 0.8, "calibration": 1.1, "accuracy": 0.8}
    for name, value in better.items():
        rule = EarlyStopping(name)
        assert rule.is_better(value, worse[name]) and not rule.is_better(worse[name], value)


def test_accuracy_and_classes_follow_the_formulas_in_float64():
    logits, labels = drawn(5000)
    assert scored(logits, labels)["accuracy"] == ((logits > 0) == labels).mean()
    rng = np.random.default_rng(1)
    z, wanted = rng.normal(size=(500, 4)), rng.integers(0, 4, 500)
    p = np.exp(z) / np.exp(z).sum(axis=1, keepdims=True)
    shares = np.bincount(wanted) / 500
    whole, parts = ClassMetrics(4), [ClassMetrics(4), ClassMetrics(4)]
    whole.update(z, wanted)
    for part, rows in zip(parts, (slice(0, 100), slice(100, 500)), strict=True):
        part.update(z[rows], wanted[rows])
    parts[0].merge(parts[1])
    found = whole.result()
    assert parts[0].result() == pytest.approx(found, rel=1e-12)
    assert found["logloss"] == pytest.approx(-np.log(p[np.arange(500), wanted]).mean())
    assert found["ne"] == pytest.approx(found["logloss"] / -(shares * np.log(shares)).sum())
    assert found["accuracy"] == (p.argmax(axis=1) == wanted).mean()
    assert set(ClassMetrics(4).result().values()) == {None, 0}


def test_grouped_auc_is_the_mean_of_each_groups_own_by_its_rows():
    logits, labels = drawn(3000)
    logits, groups = np.round(logits, 1), np.random.default_rng(2).integers(0, 400, 3000) * 7
    each = [(labels[groups == g], logits[groups == g]) for g in np.unique(groups)]
    both = [(own, z) for own, z in each if 0 < own.sum() < len(own)]
    wanted = np.average([exact_auc(z, own) for own, z in both], weights=[len(z) for _, z in both])
    metrics, other = LabelMetrics({"click": "binary"}, grouped=True), GroupedAUC()
    metrics.update(logits[:, None], labels, groups)
    result = metrics.result()
    assert (result["gauc"], result["groups"]) == (pytest.approx(wanted, rel=1e-12), len(both))
    assert len(both) < len(each)
    halves = [GroupedAUC(), other]
    for half, rows in zip(halves, (slice(0, 999), slice(999, None)), strict=True):
        half.update(logits[rows], labels[rows], groups[rows])
    halves[0].merge(other)
    assert halves[0].result()["gauc"] == pytest.approx(wanted, rel=1e-12)
    assert GroupedAUC().result() == {"gauc": None, "groups": 0}


@pytest.mark.parametrize(
    ("call", "error", "text"),
    [
        (
            lambda: ClassMetrics(3).update(np.zeros((2, 3)), np.array([0, 3])),
            DataError,
            "row 1: .* 3",
        ),
        (
            lambda: ClassMetrics(3).update(np.zeros((2, 2)), np.array([0, 1])),
            ConfigError,
            r"\(B, 3\)",
        ),
        (
            lambda: ClassMetrics(2).update(np.array([[0, np.nan]]), np.array([0])),
            NumericalError,
            "row 0: a logit is NaN",
        ),
        (
            lambda: GroupedAUC().update(np.zeros(2), np.zeros(2), np.zeros(3)),
            ConfigError,
            "one length",
        ),
        (
            lambda: GroupedAUC().update(np.array([0, np.nan]), np.zeros(2), np.zeros(2)),
            NumericalError,
            "row 1: the logit is NaN",
        ),
    ],
)
def test_rows_that_cannot_be_scored_are_named(call, error, text):
    with pytest.raises(error, match=text):
        call()
