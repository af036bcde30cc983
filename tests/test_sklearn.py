# SPDX-License-Identifier: Apache-2.0
"""Estimators under scikit-learn's own tools; needs the extra `sklearn`."""

import copy
import itertools
import json
import pickle
import shutil
import tempfile
import warnings

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

pytest.importorskip("sklearn")

from sklearn.base import clone

import sparsetrain as st
from sparsetrain.checkpoint import manifest as manifest_module
from sparsetrain.errors import CheckpointError, ConfigError, DataError, DataWarning
from sparsetrain.sklearn import ClickClassifier, Ranker, RatingRegressor
from sparsetrain.sklearn.parameters import batch_size_of, epochs_of
from tests.helpers import slow_except

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
    from sklearn.inspection import permutation_importance
    from sklearn.model_selection import GridSearchCV
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import FunctionTransformer

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


def test_numbers_are_binned_unless_asked_or_in_buckets_already():
    X, y, _ = clicks(100)
    own = st.data.Schema(dense=("noise",), categories=("site",))
    for options, wanted in (
        ({}, "binned"),
        ({"numbers": "scaled"}, "scaled"),
        ({"schema": own}, "binned"),
        ({"schema": st.data.with_buckets(own, "quantiles")}, "scaled"),
    ):
        model = ClickClassifier(**SMALL, **options).fit(X, y)
        assert model.trainer_.model.config()["numbers"] == wanted
        assert clone(model).numbers == options.get("numbers")


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
    model = RatingRegressor(warm_start=True, epochs=1, batch_size=16, **SMALL).fit(
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
    with pytest.raises(ValueError, match="is not in"):
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
    with pytest.raises(DataError, match="users are string, unlike users in fit"):
        model.recommend(["x"])
    with pytest.raises(ConfigError, match="DLRM predicts labels"):
        Ranker("dlrm").fit(log)


@pytest.mark.slow
@pytest.mark.parametrize("made", [ClickClassifier, RatingRegressor])
def test_scikit_learns_checks_pass_but_for_those_with_a_reason(made):
    from sklearn.utils.estimator_checks import check_estimator

    check_estimator(made(), expected_failed_checks=EXPECTED, on_skip=None)


LEARNS = [("check_regressors_train", RatingRegressor), ("check_classifiers_train", ClickClassifier)]


@pytest.mark.parametrize(("check", "made"), slow_except(LEARNS[:1], LEARNS))
def test_estimators_learn_small_data_as_they_come(check, made):
    from sklearn.utils import estimator_checks

    getattr(estimator_checks, check)(made.__name__, made())


def test_batches_follow_the_rows():
    sizes = {1: 8, 200: 8, 1_000: 31, 4_096: 128, 51_200: 128, 100_000: 250, 10**6: 512}
    assert {rows: batch_size_of("auto", rows) for rows in sizes} == sizes
    assert batch_size_of(1024, 10) == 1024


# Rows, values of all categories, patience -> epochs.
EPOCHS = {
    "few rows": ((4_095, 9_000, None), 3),
    "rows enough": ((4_096, 9_000, None), 1),
    "many values": ((200_000, 27_000, None), 1),
    "many values, many rows": ((10**6, 10_001, None), 1),
    "numbers, and few values": ((20_000, 45, None), 3),
    "numbers alone": ((4_096, 2, None), 3),
    "a hundred rows for each value": ((20_000, 200, None), 3),
    "a row fewer": ((19_999, 200, None), 1),
    "early stopping": ((200_000, 27_000, 1), 20),
    "early stopping of few rows": ((1_000, 5, 2), 20),
}


@pytest.mark.parametrize("table", EPOCHS)
def test_epochs_follow_rows_and_values(table):
    about, epochs = EPOCHS[table]
    assert epochs_of("auto", *about) == epochs
    assert epochs_of(2, *about) == 2


def test_a_fit_says_what_it_has_chosen():
    X, y, _ = clicks(1_000)
    found = ClickClassifier(**SMALL).fit(X, y)
    assert (found.batch_size_, found.n_iter_) == (31, 3)


# --- Forms of rows ------------------------------------------------------------------------------


def rows_of_every_kind():
    """A frame with text that is missing in places, numbers and bags, and labels."""
    X, y, _ = clicks(100)
    X["bag"] = [[n % 3, n % 5] for n in range(100)]
    X["site"] = X["site"].astype(object).where(X.index % 7 > 0, np.nan)
    return X, y


FORMS = {
    "an Arrow table": lambda X: pa.Table.from_pandas(X, preserve_index=False),
    "a table in chunks": lambda X: pa.concat_tables(
        [pa.Table.from_pandas(X[a:b], preserve_index=False) for a, b in ((0, 40), (40, None))]
    ),
    "a record batch": lambda X: pa.RecordBatch.from_pandas(X, preserve_index=False),
    "a dict of columns": lambda X: {name: X[name] for name in X},
    "rows": lambda X: pa.Table.from_pandas(X, preserve_index=False).to_pylist(),
}


@pytest.mark.parametrize("form", slow_except(["a table in chunks", "rows"], FORMS))
def test_rows_score_the_same_in_every_form(form):
    X, y = rows_of_every_kind()
    rows, model = FORMS[form](X), ClickClassifier(**SMALL)
    expected = clone(model).fit(X, y, eval_set=(X, y))
    found = model.fit(rows, pa.array(y), eval_set=[(rows, pa.array(y))])
    assert found.schema_ == expected.schema_ and {"site", "bag"} < {*found.schema_.categories}
    assert found.history_["epochs"][0]["valid"] == expected.history_["epochs"][0]["valid"]
    np.testing.assert_array_equal(found.predict_proba(rows), expected.predict_proba(X))
    np.testing.assert_array_equal(found.predict_proba(X), expected.predict_proba(X))


# Each kind of bag and of missing value, and slow ones: the other pairs.
PAIRS = [
    pytest.param(*pair, marks=[pytest.mark.slow] * (number % 4 > 0))
    for number, pair in enumerate(itertools.product([list, tuple, np.array], [None, np.nan, pd.NA]))
]


@pytest.mark.parametrize(("bag", "missing"), PAIRS)
def test_arrays_of_objects_hold_lists_and_missing_values(bag, missing):
    X, y = rows_of_every_kind()
    X["bag"] = [bag(each) for each in X["bag"]]
    X["site"] = X["site"].where(X["site"].notna(), missing)
    model = ClickClassifier(**SMALL).fit(X.to_numpy(), y)
    assert {"x0", "x3"} <= {*model.schema_.categories} and "x2" in model.schema_.dense
    named = ClickClassifier(**SMALL).fit(X.set_axis(["x0", "x1", "x2", "x3"], axis=1), y)
    np.testing.assert_array_equal(
        model.predict(X.to_numpy()), named.predict(X.set_axis([*named.feature_names_in_], axis=1))
    )


EVAL_SETS = {
    "a list of three": lambda X, y: [X, y, y],
    "no pair": lambda X, y: [],
    "three": lambda X, y: (X, y, y),
    "rows alone": lambda X, y: X,
}


@pytest.mark.parametrize("case", EVAL_SETS)
def test_an_eval_set_is_pairs(case):
    X, y, _ = clicks(50)
    with pytest.raises(ConfigError, match=r"eval_set must be pairs .*, \[\(X, y\)\] or \(X, y\)"):
        ClickClassifier(**SMALL).fit(X, y, eval_set=EVAL_SETS[case](X, y))
    with pytest.raises(ValueError, match="inconsistent numbers of samples"):
        ClickClassifier(**SMALL).fit(X, y, eval_set=(X, y[1:]))


def test_rows_of_an_eval_set_are_scored_after_each_epoch_as_lightgbm_names_them():
    X, y, stars = clicks(200)
    sets = [(X, y), (X[:80], y[:80]), (X[80:], y[80:])]
    model = ClickClassifier(epochs=2, **SMALL)
    found = model.fit(X, y, eval_set=sets).evals_result_
    assert [*found] == ["training", "valid_1", "valid_2"]
    assert all({len(own["auc"]), len(own["logloss"])} == {2} for own in found.values())
    assert found["valid_1"]["auc"][-1] == model.history_["epochs"][-1]["valid"]["auc"]
    assert clone(model).fit(X, y, eval_set=sets[1:2]).evals_result_ == {"valid_0": found["valid_1"]}
    assert [*model.fit(X, y, eval_set=sets, eval_names=["a", "b", "c"]).evals_result_] == [*"abc"]
    for wrong in (["a"], ["a", "b", "b"]):
        with pytest.raises(ConfigError, match="eval_names .* must be 3 different names"):
            model.fit(X, y, eval_set=sets, eval_names=wrong)
    rating = RatingRegressor(epochs=1, **SMALL).fit(X, stars, eval_set=(X[:80], stars[:80]))
    error = np.sqrt(np.mean((rating.predict(X[:80]) - stars[:80]) ** 2))
    np.testing.assert_allclose(rating.evals_result_["valid_0"]["rmse"], error, rtol=1e-5)
    assert rating.fit(X, stars).evals_result_ == {}


def test_a_classifier_learns_one_of_several_classes(tmp_path):
    X, _, stars = clicks(300)
    y = np.array(["low", "middle", "high"])[(stars - 100).astype(int) // 3]
    model = ClickClassifier(epochs=8, batch_size=16, class_weight="balanced", **SMALL).fit(X, y)
    found = model.predict_proba(X)
    assert found.shape == (300, 3) and model.classes_.tolist() == ["high", "low", "middle"]
    np.testing.assert_allclose(found.sum(axis=1), 1, rtol=1e-6)
    assert model.score(X, y, sample_weight=np.ones(300)) > 0.9
    model.save(tmp_path / "saved")
    np.testing.assert_array_equal(ClickClassifier.load(tmp_path / "saved").predict_proba(X), found)
    steps = ClickClassifier(**SMALL).partial_fit(X[:9], y[:9], classes=model.classes_)
    assert steps.predict_proba(X[:2]).shape == (2, 3)


def test_importances_are_of_the_rows_that_were_held_out():
    X, y, stars = clicks(300)
    X = X.assign(same=1)
    with pytest.warns(
        DataWarning, match=r"cannot help: 'same' \(always the same\); to keep them, pass schema="
    ):
        model = RatingRegressor(epochs=3, **SMALL).fit(X, stars, eval_set=(X[:99], stars[:99]))
    found = model.feature_importances_
    assert found.shape == (4,) and found.argmax() == 0 and found[3] == 0
    told = st.permutation_importance(
        model.trainer_, {**X[:99], "label": (stars[:99] - model.y_center_) / model.y_scale_}
    )
    np.testing.assert_allclose(found[0], told["site"] * model.y_scale_, rtol=1e-6)
    assert pickle.loads(pickle.dumps(model)).feature_importances_ is not None  # noqa: S301
    array = ClickClassifier(patience=1, **SMALL).fit(X[["hour", "noise"]].to_numpy(), y)
    assert array.feature_importances_.shape == (2,)
    without = model.fit(X.drop(columns="same"), stars)
    for each in (without, pickle.loads(pickle.dumps(without))):  # noqa: S301
        with pytest.raises(AttributeError, match=r"needs validation rows: fit\(\.\.\., eval_set"):
            _ = each.feature_importances_


def test_predictions_of_no_rows_are_an_empty_array():
    X, y, stars = clicks(50)
    for rows in (X, X[["hour", "noise"]].to_numpy()):
        model = ClickClassifier(**SMALL).fit(rows, y)
        assert model.predict(rows[:0]).dtype == model.classes_.dtype
        assert model.predict_proba(rows[:0]).shape == (0, 2)
        with pytest.raises(ValueError, match="minimum of 1 is required"):
            model.partial_fit(rows[:0], y[:0])
    levels = RatingRegressor(label="quantiles:0.1,0.9", **SMALL).fit(X, stars)
    assert levels.predict(X[:0]).shape == (0, 2)


UNREAD = {
    "sparse": (lambda rows: pd.arrays.SparseArray(np.arange(rows) % 2), "cannot be read"),
    "timedelta": (lambda rows: pd.to_timedelta(np.arange(rows), "s"), "duration"),
    "struct": (lambda rows: [{"a": 1}] * rows, "struct<a: int64>"),
    "period": (lambda rows: pd.period_range("2020", periods=rows), "period"),
    "mixed": (lambda rows: [1, "a"] * (rows // 2), "holds text, but int in earlier rows"),
}


@pytest.mark.parametrize("kind", UNREAD)
def test_a_column_that_no_type_fits_is_left_out_with_a_warning(kind):
    X, y, _ = clicks(100)
    values, reason = UNREAD[kind]
    with pytest.warns(DataWarning, match=rf"left out.*'odd' \(.*{reason}.*cast") as found:
        model = ClickClassifier(**SMALL).fit(X.assign(odd=values(100)), y)
    assert len(found) == 1 and "odd" not in model.schema_.wanted
    model.predict(X.assign(odd=values(100)))


def test_columns_that_are_there_twice_are_refused():
    X, y, _ = clicks(50)
    with pytest.raises(DataError, match="column site: the column is there twice"):
        ClickClassifier(**SMALL).fit(pd.concat([X, X[["site"]]], axis=1), y)


# --- Folders from others ------------------------------------------------------------------------


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    folder = tmp_path_factory.mktemp("saved")
    X, y, stars = clicks(100)
    ClickClassifier(**SMALL).fit(X, y).save(folder / "ClickClassifier")
    RatingRegressor(**SMALL).fit(X, stars).save(folder / "RatingRegressor")
    return folder


def forged(saved, folder, made, change):
    """Copy a folder and change what its estimator keeps; every checksum is right."""
    shutil.copytree(saved / made.__name__, folder)
    body = json.loads((folder / "manifest.json").read_text())
    change(body["manifest"]["extra"])
    del body["crc32"]
    body["crc32"] = manifest_module._checksum(body)
    (folder / "manifest.json").write_text(json.dumps(body))
    return folder


VALUES = [None, 3, -1, 1.5, True, 1e300, 10**400, "x", "site", [], {}, [1, 2, 3], ["b", "a"]]
VALUES += [[[1], [2, 3]], ["x", 1], ["x", "x"], [0, 10**30]]
MISSING = object()


# Classes, and which of the forgeries, each n-th.
FORGED = [*itertools.product([ClickClassifier, RatingRegressor], [7, 1])]


@pytest.mark.parametrize(("made", "stride"), slow_except(FORGED[::2], FORGED))
def test_a_forged_estimator_is_refused_or_works(saved, tmp_path, made, stride):
    X = clicks(100)[0]
    names = ["classes_", "constant_", "feature_names_in_", "n_features_in_", "n_iter_"]
    names += ["y_center_", "y_scale_", "predict", "trainer_", "__class__", "schema_", "_kept"]
    refused, forgeries = 0, itertools.product(names, [*VALUES, MISSING])
    for number, (name, value) in enumerate(itertools.islice(forgeries, 0, None, stride)):

        def change(extra, name=name, value=value):
            kept = extra["estimator"]
            kept.pop(name, None)
            if value is not MISSING:
                kept[name] = value

        folder = forged(saved, tmp_path / str(number), made, change)
        try:
            loaded = made.load(folder)
        except CheckpointError as error:
            assert str(folder) in str(error) and "\n" not in str(error)  # noqa: PT017
            refused += 1
        else:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # without names, scikit-learn says so
                assert len(loaded.predict(X)) == len(X) and type(loaded) is made
    assert refused > number * 0.8


@pytest.mark.parametrize("value", [None, [], "x", {}, {"estimator": None}, {"estimator": ["x"]}])
def test_a_folder_without_an_estimator_is_refused(saved, tmp_path, value):
    def change(extra):
        extra.clear()
        extra.update(value if isinstance(value, dict) else {"estimator": value})

    with pytest.raises(CheckpointError, match="x .*(estimator's save|lacks the entry)"):
        ClickClassifier.load(forged(saved, tmp_path / "x", ClickClassifier, change))


def test_an_estimator_of_another_class_is_refused(saved):
    for made, other in ((ClickClassifier, RatingRegressor), (RatingRegressor, ClickClassifier)):
        with pytest.raises(CheckpointError, match="unlike an estimator of this class"):
            made.load(saved / other.__name__)


@pytest.mark.parametrize("name", ["../out", "{}/out", "x", "000.npy/../x", "", 3])
def test_a_pickled_estimator_writes_files_of_a_checkpoint_alone(saved, tmp_path, monkeypatch, name):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    state = ClickClassifier.load(saved / "ClickClassifier").__getstate__()
    name = name.format(tmp_path) if isinstance(name, str) else name
    state["_saved"][name] = b"x"
    with pytest.raises(CheckpointError, match="the pickled estimator has an unknown file"):
        ClickClassifier.__new__(ClickClassifier).__setstate__(state)
    assert not [*tmp_path.iterdir()]


class Own(st.models.DLRM):
    """A model of a user's."""

    kind = "own"


def test_a_model_of_ones_own_is_saved_and_pickled(tmp_path):
    X, y, _ = clicks(50)
    model = ClickClassifier(Own, **SMALL).fit(X, y)
    model.save(tmp_path / "own")
    for again in (ClickClassifier.load(tmp_path / "own", model=Own), copy.deepcopy(model)):
        np.testing.assert_array_equal(again.predict(X), model.predict(X))
