# SPDX-License-Identifier: Apache-2.0
"""Estimators in scikit-learn's conventions, around an encoder and a trainer.

`ClickClassifier` predicts one of two classes, `RatingRegressor` a number, `Ranker` the items that
a user chooses. Needs scikit-learn (the extra ``sklearn``), which nothing else of this package
imports.
"""

from sparsetrain.sklearn.estimators import ClickClassifier as ClickClassifier
from sparsetrain.sklearn.estimators import RatingRegressor as RatingRegressor
from sparsetrain.sklearn.ranker import Ranker as Ranker
