# SPDX-License-Identifier: Apache-2.0
"""Scores by name: which direction is better, and ratios that may be undefined."""

from collections.abc import Callable, Iterable

import numpy as np

Scores = dict[str, float | int | None]


def _lower(score: float) -> float:
    return -score


def _higher(score: float) -> float:
    return score


def _near_one(score: float) -> float:
    return -abs(score - 1.0)


# Scores that can be monitored, without the label's name -> a function that is larger if better.
GAINS: dict[str, Callable[[float], float]] = {
    "logloss": _lower,
    "ne": _lower,
    "auc": _higher,
    "gauc": _higher,
    "calibration": _near_one,
    "accuracy": _higher,
    "rmse": _lower,
    "mae": _lower,
    "loss": _lower,
    **dict.fromkeys(("hr", "ndcg", "mrr", "recall", "precision", "map"), _higher),  # as "hr@10"
}


def base_name(name: str) -> str:
    """Return a score's name without a label's name and without the k of a ranking."""
    return name.rpartition(".")[2].partition("@")[0]


def ratio(total: float | None, count: float | None) -> float | None:
    """Return `total / count`, or None if that is undefined."""
    return total / count if total is not None and count else None


def entropy(shares: Iterable[float]) -> float:
    """Return the entropy of shares that sum to 1, in nats."""
    return -float(sum(p * np.log(p) for p in shares if p > 0.0)) + 0.0
