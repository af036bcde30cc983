# SPDX-License-Identifier: Apache-2.0
"""Estimators with scikit-learn's interface, around an encoder and a trainer.

`ClickClassifier` predicts a class, `RatingRegressor` a number, `Ranker` the items that a user
chooses. Needs scikit-learn (the extra ``sklearn``); nothing else in this package imports it.
"""

from sparsetrain.sklearn.estimators import ClickClassifier as ClickClassifier
from sparsetrain.sklearn.estimators import RatingRegressor as RatingRegressor
from sparsetrain.sklearn.ranker import Ranker as Ranker
