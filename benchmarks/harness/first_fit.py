# SPDX-License-Identifier: Apache-2.0
"""One arm of `first_minute.py`, in a process of its own: fits a frame and scores others.

Seconds are those of preparing the frame and fitting, as a user who has one waits; importing comes
before. Memory is the process's peak from the import on, less the frames.
"""

from __future__ import annotations

import json
import sys
import warnings
from collections.abc import Callable
from time import perf_counter
from typing import Any

import numpy as np
import pandas as pd
import pyarrow.parquet as pq

LABEL = "clicked"
COMMON = 30  # values of a list that get a column in LightGBM and CatBoost
Fit = Callable[[pd.DataFrame, np.ndarray], Callable[[pd.DataFrame], np.ndarray]]


def main() -> None:
    """Print the scores and costs of an arm as JSON."""
    arm, train, test = sys.argv[1:4]
    warnings.simplefilter("ignore")
    frame, held_out = (pq.read_table(path).to_pandas() for path in (train, test))
    labels, truth = (each.pop(LABEL).to_numpy() for each in (frame, held_out))
    before = _restart_peak()
    begin = perf_counter()
    fit = ARMS[arm]()
    imported = perf_counter()
    score = fit(frame, labels)
    fitted = perf_counter()
    scores = score(held_out)
    found = {
        "import_s": imported - begin,
        "fit_s": fitted - imported,
        "score_s": perf_counter() - fitted,
        "auc": auc(truth, scores),
        "mb": (_memory("VmHWM") - before) / 1e3,
    }
    print(json.dumps(found))


def _ours() -> Fit:
    from sparsetrain.sklearn import ClickClassifier

    def fit(frame: pd.DataFrame, labels: np.ndarray) -> Any:
        model = ClickClassifier(random_state=0).fit(frame, labels)
        return lambda other: model.predict_proba(other)[:, 1]

    return fit


def _lightgbm() -> Fit:
    from lightgbm import LGBMClassifier

    def fit(frame: pd.DataFrame, labels: np.ndarray) -> Any:
        prepared, prepare = _columns_for_trees(frame)
        model = LGBMClassifier(verbose=-1, random_state=0).fit(prepared, labels)
        return lambda other: model.predict_proba(prepare(other))[:, 1]

    return fit


def _catboost() -> Fit:
    from catboost import CatBoostClassifier

    def fit(frame: pd.DataFrame, labels: np.ndarray) -> Any:
        prepared, prepare = _columns_for_trees(frame)
        names = [n for n in prepared if isinstance(prepared[n].dtype, pd.CategoricalDtype)]

        def as_text(columns: pd.DataFrame) -> pd.DataFrame:
            return columns.assign(**{n: columns[n].astype(str) for n in names})

        model = CatBoostClassifier(cat_features=names, verbose=False, random_seed=0)
        model.fit(as_text(prepared), labels)
        return lambda other: model.predict_proba(as_text(prepare(other)))[:, 1]

    return fit


def _columns_for_trees(
    frame: pd.DataFrame,
) -> tuple[pd.DataFrame, Callable[[pd.DataFrame], pd.DataFrame]]:
    """Texts as categories, the hour and weekday of times, a column for a list's common values."""
    texts = {n: frame[n].astype("category").dtype for n in frame if _is_text(frame[n])}
    common = {
        name: frame[name].explode().value_counts().index[:COMMON].tolist()
        for name in frame
        if _is_list(frame[name])
    }

    def prepare(other: pd.DataFrame) -> pd.DataFrame:
        made: dict[str, Any] = {}
        for name in other:
            column = other[name]
            if name in texts:
                made[name] = column.astype(texts[name])
            elif name in common:
                items = column.explode()
                for value in common[name]:
                    is_there = np.zeros(len(other), bool)
                    is_there[items.index[items == value]] = True
                    made[f"{name}_{value}"] = is_there
            elif column.dtype.kind == "M":
                made |= {f"{name}_hour": column.dt.hour, f"{name}_weekday": column.dt.weekday}
            else:
                made[name] = column
        return pd.DataFrame(made, index=other.index)

    return prepare(frame), prepare


def _torch() -> Fit:
    from harness.plain_torch import fit

    return fit


def _is_list(column: pd.Series) -> bool:
    return column.dtype == object and isinstance(column.iloc[0], (np.ndarray, list))


def _is_text(column: pd.Series) -> bool:
    return column.dtype.kind not in "iufbM" and not _is_list(column)


ARMS = {"ours": _ours, "lightgbm": _lightgbm, "catboost": _catboost, "torch": _torch}


def auc(labels: np.ndarray, scores: np.ndarray) -> float:
    """Return the area under the curve; of equal scores a half counts."""
    _, place, count = np.unique(scores, return_inverse=True, return_counts=True)
    rank = (np.cumsum(count) - (count - 1) / 2)[place]
    clicks = int(labels.sum())
    below = rank[labels == 1].sum() - clicks * (clicks + 1) / 2
    return float(below / (clicks * (len(labels) - clicks)))


def _restart_peak() -> int:
    """Let the peak begin anew; return the kilobytes in use."""
    with open("/proc/self/clear_refs", "w") as file:
        file.write("5")
    return _memory("VmRSS")


def _memory(name: str) -> int:
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) for line in file if line.startswith(f"{name}:"))


if __name__ == "__main__":
    main()
