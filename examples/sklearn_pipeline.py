# SPDX-License-Identifier: Apache-2.0
"""A click model in scikit-learn: cross-validation and a grid search.

pip install 'sparsetrain[sklearn]' && python examples/sklearn_pipeline.py
"""

import numpy as np
import pandas as pd
from sklearn.model_selection import GridSearchCV, cross_val_score

from sparsetrain.sklearn import ClickClassifier


def clicks(rows: int = 1500) -> tuple[pd.DataFrame, np.ndarray]:
    """Draw rows; site and price decide the probability of a click."""
    rng = np.random.default_rng(0)
    site, price = rng.integers(0, 20, rows), rng.gamma(2.0, 5.0, rows)
    logit = np.linspace(-2, 2, 20)[site] - 0.1 * (price - 10)
    frame = pd.DataFrame(
        {"site": [f"site{n}" for n in site], "price": price}
    )
    return frame, (rng.random(rows) < 1 / (1 + np.exp(-logit))).astype(int)


frame, labels = clicks()
model = ClickClassifier(epochs=2, batch_size=64)
print(
    "AUC of three folds:",
    cross_val_score(model, frame, labels, cv=3, scoring="roc_auc"),
)
search = GridSearchCV(
    model, {"epochs": [1, 3]}, scoring="roc_auc", cv=2
).fit(frame, labels)
print("best:", search.best_params_, f"AUC {search.best_score_:.3f}")
