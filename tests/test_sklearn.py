# SPDX-License-Identifier: Apache-2.0
"""Estimators under scikit-learn's own tools; needs the extra `sklearn`."""

import pickle

import numpy as np
import pandas as pd
import pytest

pytest.importorskip("sklearn")

from sklearn.base import clone
from sklearn.inspection import permutation_importance
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer
from sklearn.utils.estimator_checks import check_estimator

import sparsetrain as st
from sparsetrain.errors import ConfigError, DataError
from sparsetrain.sklearn import ClickClassifier, Ranker, RatingRegressor

SMALL = {"dim": 4, "model_options": {"bottom": (8,), "top": (8,)}, "lr": 0.1, "random_state": 0}
# Checks that fail, and why.
EXPECTED = {
    "check_sample_weight_equivalence_on_dense_data": "a weight of 2 is one step on a row, and two "
    "rows may be in different steps",
    **dict.fromkeys(
        ("check_classifier_data_not_an_array", "check_regressor_data_not_an_array"),
        "whole numbers are categories in a frame, whose columns have roles, and dense in an array",
    ),
}


def clicks(rows=400):
    rng = np.random.default_rng(0)
    site, hour = rng.integers(0, 9, rows), rng.integers(0, 24, rows)
    frame = pd.DataFrame({"site": [f"s{n}" for n in site], "hour": hour, "noise": rng.random(rows)})
    return frame, np.where(site + rng.normal(0, 2, rows) > 4, "yes", "no"), site + 100.0


@pytest.mark.slow
def test_a_classifier_is_searched_over_and_asked_for_importances():
    X, y, _ = clicks()
    model = ClickClassifier(epochs=4, batch_size=32, **SMALL)
    pipeline = make_pipeline(FunctionTransformer(), model)
    search = GridSearchCV(pipeline, {"clickclassifier__lr": [0.1]}, cv=2)
    assert search.fit(X, y).best_score_ > 0.7
    fitted = search.best_estimator_[-1]
    assert clone(fitted).get_params() == fitted.get_params()
    assert fitted.feature_names_in_.tolist() == [*X] and fitted.classes_.tolist() == ["no", "yes"]
    both = fitted.predict_proba(X)
    np.testing.assert_allclose(both.sum(axis=1), 1)
    importances = permutation_importance(fitted, X, y, n_repeats=2, random_state=0).importances_mean
    assert importances.argmax() == 0


@pytest.mark.slow
def test_what_is_saved_or_pickled_predicts_the_same_and_is_a_run_for_the_library(tmp_path):
    X, y, stars = clicks(100)
    classifier = ClickClassifier(class_weight="balanced", **SMALL).fit(X, y)
    regressor = RatingRegressor(**SMALL).fit(X.to_numpy(), stars)
    for fitted, rows in ((classifier, X), (regressor, X.to_numpy())):
        fitted.save(tmp_path / type(fitted).__name__)
        again = type(fitted).load(tmp_path / type(fitted).__name__)
        for other in (again, pickle.loads(pickle.dumps(fitted))):  # noqa: S301
            np.testing.assert_array_equal(other.predict(rows), fitted.predict(rows))
    found = st.load_predictor(tmp_path / "ClickClassifier").predict(X)
    np.testing.assert_array_equal(found, classifier.predict_proba(X)[:, 1].astype("float32"))


def test_training_goes_on_and_stops_early():
    X, y, stars = clicks(100)
    model = RatingRegressor(warm_start=True, batch_size=16, **SMALL).fit(
        X, stars, eval_set=(X, stars)
    )
    first = model.history_["epochs"][0]["valid"]["rmse"]
    model.fit(X, stars, eval_set=(X, stars))
    assert model.n_iter_ == 2 and model.history_["epochs"][0]["valid"]["rmse"] < first
    steps = ClickClassifier(**SMALL)
    for part in (slice(0, 50), slice(50, 100)):
        steps.partial_fit(X[part], y[part], classes=["no", "yes"])
    assert steps.n_iter_ == 2
    stopped = ClickClassifier(patience=1, epochs=50, validation_fraction=0.3, **SMALL).fit(X, y)
    assert stopped.history_["stopped_early"]
    with pytest.raises(ValueError, match="none of"):
        steps.partial_fit(X[:1], ["maybe"])


def test_a_ranker_recommends_items_of_the_sort_that_a_user_chose():
    rng = np.random.default_rng(0)
    user = np.repeat(np.arange(60), 8)
    log = pd.DataFrame({"who": user, "what": user % 2 + 2 * rng.integers(0, 15, len(user))})
    log = log.drop_duplicates()
    last = ~log.duplicated("who", keep="last")
    model = Ranker(dim=8, lr=0.02, epochs=10, batch_size=32, user="who", item="what")
    model = clone(model).set_params(random_state=0).fit(log[~last])
    assert model.score(log[last]) == model.score(log[last].astype(str)) > 0
    found = model.recommend(np.arange(60), k=3)[0]
    assert (found % 2 == np.arange(60)[:, None] % 2).mean() > 0.8
    items, scores = model.recommend([3, 4, 999], k=4)
    assert items.shape == scores.shape == (3, 4)
    assert not {*items[0]} & {*log[~last].query("who == 3").what}
    assert model.predict(log[:2]).tolist() == [model.recommend([0], 1)[0][0, 0]] * 2
    with pytest.raises(DataError, match="users are string, unlike those of fit"):
        model.recommend(["x"])
    with pytest.raises(ConfigError, match="DLRM predicts labels"):
        Ranker("dlrm").fit(log)


@pytest.mark.slow
@pytest.mark.parametrize("made", [ClickClassifier, RatingRegressor])
def test_scikit_learns_checks_pass_but_for_those_with_a_reason(made):
    check_estimator(made(epochs=2, batch_size=16), expected_failed_checks=EXPECTED, on_skip=None)
