# SPDX-License-Identifier: Apache-2.0
"""Two histograms (clicks, others) over 2^20 bins of the logit, and the AUC that follows from them.

A bin holds the float32 numbers that share their top 20 bits, so bins are narrow where floats are
dense and no range is assumed. Pairs of rows in different bins are counted exactly; pairs inside a
bin count half, and `Bins.bound` says how much that can be wrong. A row costs about 20 ns and the
state 24 MB, whatever the number of rows; sorting would need them all.
"""

from __future__ import annotations

import numpy as np

from sparsetrain.metrics.scores import ratio

_LOW_BITS = 12
_BINS = 1 << (32 - _LOW_BITS)


class Bins:
    """Rows counted by their scores, clicks apart from others."""

    def __init__(self) -> None:
        self.counts = np.zeros((2, _BINS), np.int64)  # others, clicks
        self._lowest = np.full(_BINS, 0xFFFFFFFF, np.uint32)  # keys seen in each bin
        self._highest = np.zeros(_BINS, np.uint32)

    def add(self, scores: np.ndarray, clicks: np.ndarray) -> None:
        """Add rows: scores (B,) without NaN, and whether each was clicked (B,) bool."""
        keys = _order_keys(scores)
        bins = (keys >> _LOW_BITS).astype(np.int64)
        np.add.at(self.counts.reshape(-1), bins + clicks * _BINS, 1)
        np.minimum.at(self._lowest, bins, keys)
        np.maximum.at(self._highest, bins, keys)

    def merge(self, other: Bins) -> None:
        """Add the rows of `other`."""
        self.counts += other.counts
        np.minimum(self._lowest, other._lowest, out=self._lowest)
        np.maximum(self._highest, other._highest, out=self._highest)

    def auc(self) -> float | None:
        """Return the AUC, a pair inside a bin counted half; None with one class only."""
        others, clicks = (int(count) for count in self.counts.sum(axis=1))
        # Float64 rather than int64: the number of pairs overflows at four billion rows.
        # Most bins met no row, and add nothing.
        met = np.flatnonzero(self._lowest <= self._highest)
        negatives, positives = self.counts[:, met].astype(np.float64)
        below = np.cumsum(negatives) - 0.5 * negatives
        return ratio(float((positives * below).sum()), others * clicks)

    def bound(self) -> float | None:
        """Return how far `auc` may be from that of a sort."""
        others, clicks = (int(count) for count in self.counts.sum(axis=1))
        unsure = self._lowest < self._highest
        negatives, positives = self.counts[:, unsure].astype(np.float64)
        return ratio(0.5 * float((positives * negatives).sum()), others * clicks)


def _order_keys(z: np.ndarray) -> np.ndarray:
    """Map float32 of `z` to uint32 with the same order, -0.0 and 0.0 to one key: (B,)."""
    with np.errstate(over="ignore"):
        bits = (z.astype(np.float32) + np.float32(0.0)).view(np.uint32)
    # Negative floats fall as their bits rise, so these are flipped whole, the others by the sign.
    return np.where(bits >> 31, ~bits, bits | np.uint32(0x80000000))
