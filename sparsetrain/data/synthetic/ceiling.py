# SPDX-License-Identifier: Apache-2.0
"""The best possible score on synthetic rows, from their true probabilities.

A row with probability p counts as a click with weight p and as no click with weight 1 - p. The best
AUC is the AUC of the true logits under these weights, and the best logloss is the mean entropy.
Weights are summed in 2^16 bins of the logit, which take 1 MB for any number of rows; a pair inside
a bin counts half, which changes the AUC by less than 1e-7.
"""

from typing import NamedTuple

import numpy as np

_BINS, _LIMIT = 1 << 16, 16.0  # logits beyond the limit share the outer bins


class Truth(NamedTuple):
    """Expected scores of a perfect model on some rows, over their random labels.

    Attributes
    ----------
    auc : float
        Area under the ROC curve of the true probabilities.
    logloss : float
        Mean entropy of the labels given the features, in nats.
    click_rate : float
        Mean true probability.
    rows : int
        Number of rows.
    """

    auc: float
    logloss: float
    click_rate: float
    rows: int


class CeilingMeter:
    """Collects the true logits of rows while they are generated."""

    def __init__(self) -> None:
        self._weights = np.zeros((2, _BINS))  # no click, click
        self._entropy = 0.0
        self.rows = 0

    def update(self, logits: np.ndarray) -> None:
        """Add rows with these true logits, float64 (n,)."""
        p = sigmoid(logits)
        bins = ((logits + _LIMIT) * (_BINS / (2 * _LIMIT))).astype(np.int64)
        np.clip(bins, 0, _BINS - 1, out=bins)
        for weights, share in zip(self._weights, (1.0 - p, p), strict=True):
            weights += np.bincount(bins, share, _BINS)
        self._entropy += float((np.logaddexp(0.0, logits) - p * logits).sum())
        self.rows += len(p)

    def result(self) -> Truth:
        """Return the ceiling of all rows so far; at least one is needed."""
        clicks = float(self._weights[1].sum())
        return Truth(
            weighted_auc(*self._weights),
            self._entropy / self.rows,
            clicks / self.rows,
            self.rows,
        )


def sigmoid(x: np.ndarray) -> np.ndarray:
    """Return `1 / (1 + exp(-x))` without overflow."""
    return np.exp(-np.logaddexp(0.0, -x))


def weighted_auc(negatives: np.ndarray, positives: np.ndarray) -> float:
    """Return the AUC of weights (k,) in ascending order of score; pairs in one entry count half."""
    below = np.cumsum(negatives) - 0.5 * negatives
    return float((positives * below).sum() / (positives.sum() * negatives.sum()))
