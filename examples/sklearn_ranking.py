# SPDX-License-Identifier: Apache-2.0
"""A ranking model in scikit-learn: a grid search by NDCG.

pip install 'sparsetrain[sklearn]' && python examples/sklearn_ranking.py
"""

import numpy as np
import pandas as pd
from sklearn.model_selection import GridSearchCV, KFold

from sparsetrain.sklearn import Ranker


def choices(
    users: int = 100, items: int = 60, each: int = 12
) -> pd.DataFrame:
    """Draw items that users chose: each user's are of one sort."""
    user = np.repeat(np.arange(users), each)
    item = user % 3 + 3 * np.random.default_rng(0).integers(
        0, items // 3, len(user)
    )
    return pd.DataFrame({"user": user, "item": item}).drop_duplicates()


log = choices()
folds = KFold(2, shuffle=True, random_state=0)
search = GridSearchCV(
    Ranker(lr=0.02, random_state=0), {"dim": [4, 16]}, cv=folds
).fit(log)
print("best:", search.best_params_, f"NDCG@10 {search.best_score_:.3f}")
items, scores = search.best_estimator_.recommend([0, 1], k=3)
print("for two users:", items.tolist())
