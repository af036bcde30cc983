# SPDX-License-Identifier: Apache-2.0
"""Scores by name: which value of each is better, and quotients that may not exist."""

from collections.abc import Callable, Iterable

import numpy as np

Scores = dict[str, float | int | None]


def _lower(score: float) -> float:
    return -score


def _higher(score: float) -> float:
    return score


def _near_one(score: float) -> float:
    return -abs(score - 1.0)


# Scores that can be watched, without the label's name -> a function that is larger for better ones.
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
    **dict.fromkeys(("hr", "ndcg", "mrr", "recall", "precision", "map"), _higher),  # behind them @k
}


def base_name(name: str) -> str:
    """Return a score's name without its label's, and without a ranking's k."""
    return name.rpartition(".")[2].partition("@")[0]


def ratio(total: float | None, count: float | None) -> float | None:
    """Return `total / count`, or None where that does not exist."""
    return total / count if total is not None and count else None


def entropy(shares: Iterable[float]) -> float:
    """Return the entropy of shares that sum to 1, in nats."""
    return -float(sum(p * np.log(p) for p in shares if p > 0.0)) + 0.0
