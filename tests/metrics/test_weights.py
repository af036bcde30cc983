# SPDX-License-Identifier: Apache-2.0
"""Scores of weighted rows: a whole weight is the row so many times, others are scikit-learn's."""

import numpy as np
import pytest
import sklearn.metrics

from sparsetrain.errors import ConfigError, DataError
from sparsetrain.labels import Classes, Count, LabelMetrics, Quantiles, label_of
from sparsetrain.metrics import ClickMetrics, auc

RNG = np.random.default_rng(0)
ROWS = 300
WEIGHTS = RNG.integers(0, 4, ROWS)
# Kind of label -> logits and labels of rows.
KINDS = {
    "binary": (RNG.normal(size=ROWS).round(1), RNG.integers(0, 2, ROWS)),
    "real": (1e6 + RNG.normal(size=ROWS), 1e6 + RNG.normal(size=ROWS)),
    "classes": (RNG.normal(size=(ROWS, 3)), RNG.integers(0, 3, ROWS)),
    "count": (RNG.normal(size=ROWS), RNG.poisson(2.0, ROWS).astype(float)),
    "quantiles": (np.sort(RNG.normal(size=(ROWS, 2))), RNG.normal(size=ROWS)),
}
LABELS = {"classes": Classes(3), "count": Count(), "quantiles": Quantiles(0.1, 0.9)}


@pytest.mark.parametrize("binned", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_a_weight_is_how_often_a_row_is_there(kind, binned, monkeypatch):
    monkeypatch.setattr(auc, "_EXACT_ROWS", 100 if binned else 1 << 22)
    logits, labels = KINDS[kind]
    made = LABELS.get(kind) or label_of(kind)
    weighed, parts, repeated = made.metrics(), made.metrics(), made.metrics()
    for begin, into in ((0, weighed), (120, parts)):
        rows = slice(begin, 120 if begin == 0 else None)
        into.update(logits[rows], labels[rows], WEIGHTS[rows])
    weighed.merge(parts)
    repeated.update(np.repeat(logits, WEIGHTS, axis=0), np.repeat(labels, WEIGHTS))
    found, expected = weighed.result(), repeated.result()
    assert (found.pop("rows"), expected.pop("rows")) == (ROWS, WEIGHTS.sum())
    assert found == pytest.approx(expected, rel=1e-9)


def test_weighted_scores_of_clicks_are_those_of_scikit_learn():
    logits, labels = KINDS["binary"]
    weights = RNG.gamma(0.5, size=ROWS)
    metrics, chances = ClickMetrics(), 1 / (1 + np.exp(-logits))
    metrics.update(logits[:100], labels[:100], weights[:100])
    metrics.update(logits[100:], labels[100:], weights[100:])
    found = metrics.result()
    given = {"sample_weight": weights}
    peer = sklearn.metrics
    assert found["auc"] == pytest.approx(peer.roc_auc_score(labels, logits, **given), rel=1e-12)
    assert found["logloss"] == pytest.approx(peer.log_loss(labels, chances, **given), rel=1e-12)
    right = peer.accuracy_score(labels, logits > 0, **given)
    assert found["accuracy"] == pytest.approx(right, rel=1e-12)


def test_rows_before_the_first_weight_count_once():
    logits, labels = KINDS["binary"]
    mixed, whole = ClickMetrics(), ClickMetrics()
    mixed.update(logits[:50], labels[:50])
    mixed.update(logits[50:], labels[50:], WEIGHTS[50:])
    mixed.update(logits[:9], labels[:9])
    weights = np.r_[np.ones(50), WEIGHTS[50:], np.ones(9)]
    whole.update(np.r_[logits, logits[:9]], np.r_[labels, labels[:9]], weights)
    assert mixed.result() == pytest.approx(whole.result(), rel=1e-12)


def test_the_loss_of_several_labels_is_weighted_too():
    wanted = np.stack([KINDS["binary"][1], np.where(WEIGHTS == 1, np.nan, 2.0)], axis=1)
    logits = np.stack([KINDS["binary"][0], KINDS["count"][0]], axis=1)
    weighed, repeated = (LabelMetrics({"click": "binary", "stars": "real"}) for _ in range(2))
    weighed.update(logits, wanted, weights=WEIGHTS)
    repeated.update(np.repeat(logits, WEIGHTS, axis=0), np.repeat(wanted, WEIGHTS, axis=0))
    for score in ("loss", "click.auc", "stars.rmse"):
        assert weighed.result()[score] == pytest.approx(repeated.result()[score], rel=1e-12)


WRONG = {
    "negative": ([1.0, -1.0], DataError, "row 2: the weight is -1.0; it must be 0 or more"),
    "NaN": ([np.nan, 1.0], DataError, "row 1: the weight is nan"),
    "too few": ([1.0], ConfigError, r"weights \(1,\) must be \(2,\)"),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_is_no_weight_is_refused_and_adds_nothing(case):
    weights, error, message = WRONG[case]
    metrics = ClickMetrics()
    metrics.update(np.zeros(1), np.ones(1))
    with pytest.raises(error, match=message):
        metrics.update(np.zeros(2), np.ones(2), np.array(weights))
    assert metrics.result()["rows"] == 1
