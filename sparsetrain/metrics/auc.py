# SPDX-License-Identifier: Apache-2.0
"""AUC over batches of rows: exact up to four million rows, from histograms above that.

Up to 2^22 rows are kept (5 bytes each, 13 with weights) and sorted when `auc` is called, about 50
ns a row. More rows are counted in two histograms (clicks, non-clicks) over 2^20 bins of the logit,
24 MB and 20 ns a row. A bin holds the float32 numbers with equal top 20 bits, so bins are narrow
where floats are dense and no range is assumed. Pairs of rows in different bins are counted exactly;
pairs inside a bin count half, and `bound` limits the error. Only the number of rows decides whether
rows are kept or counted, so neither the batches nor the order of merging changes a digit.
"""

from __future__ import annotations

import numpy as np

from sparsetrain.metrics.scores import ratio

_LOW_BITS = 12
_BINS = 1 << (32 - _LOW_BITS)
_EXACT_ROWS = 1 << 22


class ClickOrder:
    """The scores of clicks and non-clicks, as rows or as histograms.

    Attributes
    ----------
    rows : int
        Number of rows.
    weight, clicks : int, or float once a row has a weight
        The sums of weights of all rows and of clicks.
    """

    def __init__(self) -> None:
        self.rows = 0
        self.weight: float = 0
        self.clicks: float = 0
        self._scores, self._clicked = np.empty(0, np.float32), np.empty(0, bool)
        self._weights: np.ndarray | None = None  # (rows,) once a row has a weight
        self._bins: Bins | None = None

    def add(
        self, scores: np.ndarray, clicked: np.ndarray, weights: np.ndarray | None = None
    ) -> None:
        """Add rows: scores (B,) without NaN, whether each was clicked (B,) bool, weights (B,)."""
        begin, end = self.rows, self.rows + len(scores)
        if end > _EXACT_ROWS:
            self._binned().add(scores, clicked, weights)
        else:
            self._make_room(end, weights is not None)
            if weights is not None and self._weights is not None:
                self._weights[begin:end] = weights
            with np.errstate(over="ignore"):
                self._scores[begin:end] = scores
            self._clicked[begin:end] = clicked
        self.rows = end
        if weights is None:
            self.weight += len(scores)
            self.clicks += int(np.count_nonzero(clicked))
        else:
            self.weight += float(weights.sum())
            self.clicks += float(weights[clicked].sum())

    def merge(self, other: ClickOrder) -> None:
        """Add the rows of `other`."""
        if other._bins is None:
            self.add(*other._kept)
            return
        self._binned().merge(other._bins)
        self.rows += other.rows
        self.weight += other.weight
        self.clicks += other.clicks

    def auc(self) -> float | None:
        """Return the share of pairs in which the click scores higher; None with one class only.

        Ties count half. Above 2^22 rows, pairs inside a bin count as ties.
        """
        twice = self._twice_above() if self._bins is None else self._bins.twice_above()
        return ratio(twice, 2 * self._pairs)

    def bound(self) -> float | None:
        """Return a bound on the difference between `auc` and the exact value."""
        return ratio(0.0 if self._bins is None else self._bins.unsure(), self._pairs)

    @property
    def _pairs(self) -> float:
        return self.clicks * (self.weight - self.clicks)

    @property
    def _kept(self) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
        """The scores, clicks and weights of rows that are not yet in bins."""
        own = slice(self.rows)
        weights = None if self._weights is None else self._weights[own]
        return self._scores[own], self._clicked[own], weights

    def _make_room(self, rows: int, weighs: bool) -> None:
        if rows > len(self._scores):
            more = np.empty(min(max(rows, 4096), _EXACT_ROWS - len(self._scores)), np.float32)
            self._scores = np.concatenate([self._scores, more])
            self._clicked = np.concatenate([self._clicked, more > 0])
        if weighs or self._weights is not None:
            known = np.empty(0) if self._weights is None else self._weights
            self._weights = np.r_[known, np.ones(len(self._scores) - len(known))]

    def _binned(self) -> Bins:
        if self._bins is None:
            self._bins = Bins()
            self._bins.add(*self._kept)
            self._scores, self._clicked = np.empty(0, np.float32), np.empty(0, bool)
            self._weights = None
        return self._bins

    def _twice_above(self) -> float:
        """Return the sum over clicks of: twice the non-clicks below, plus the tied non-clicks."""
        scores, clicked, weights = self._kept
        if weights is None:
            clicks, others = np.sort(scores[clicked]), np.sort(scores[~clicked])
            return sum(int(others.searchsorted(clicks, side).sum()) for side in ("left", "right"))
        clicks, others = scores[clicked], scores[~clicked]
        order = np.argsort(others)
        below = np.r_[0.0, np.cumsum(weights[~clicked][order])]  # weight of the n lowest, by n
        places = (others[order].searchsorted(clicks, side) for side in ("left", "right"))
        return sum(float(weights[clicked] @ below[place]) for place in places)


class Bins:
    """Histograms of scores, by number or weight of rows, for clicks and for non-clicks."""

    def __init__(self) -> None:
        self._counts: np.ndarray = np.zeros((2, _BINS), np.int64)  # non-clicks, clicks
        self._lowest = np.full(_BINS, 0xFFFFFFFF, np.uint32)  # keys seen in each bin
        self._highest = np.zeros(_BINS, np.uint32)

    def add(
        self, scores: np.ndarray, clicks: np.ndarray, weights: np.ndarray | None = None
    ) -> None:
        """Add rows: scores (B,) without NaN, whether each was clicked (B,) bool, weights (B,)."""
        keys = _order_keys(scores)
        bins = (keys >> _LOW_BITS).astype(np.int64)
        if weights is not None:
            self._counts = self._counts.astype(np.float64, copy=False)
        added = 1 if weights is None else weights
        np.add.at(self._counts.reshape(-1), bins + clicks * _BINS, added)
        np.minimum.at(self._lowest, bins, keys)
        np.maximum.at(self._highest, bins, keys)

    def merge(self, other: Bins) -> None:
        """Add the rows of `other`."""
        self._counts = self._counts + other._counts
        np.minimum(self._lowest, other._lowest, out=self._lowest)
        np.maximum(self._highest, other._highest, out=self._highest)

    def twice_above(self) -> float:
        """Return twice the count of pairs that the click wins; a pair inside a bin is a tie."""
        # Float64, since the number of pairs overflows int64 at four billion rows.
        # Most bins have no row, and add nothing.
        met = np.flatnonzero(self._lowest <= self._highest)
        others, clicks = self._counts[:, met].astype(np.float64)
        return float((clicks * (2 * np.cumsum(others) - others)).sum())

    def unsure(self) -> float:
        """Return half the number of pairs inside bins with more than one distinct score."""
        others, clicks = self._counts[:, self._lowest < self._highest].astype(np.float64)
        return 0.5 * float((clicks * others).sum())


def _order_keys(z: np.ndarray) -> np.ndarray:
    """Map float32 of `z` to uint32 with the same order, -0.0 and 0.0 to one key: (B,)."""
    with np.errstate(over="ignore"):
        bits = (z.astype(np.float32) + np.float32(0.0)).view(np.uint32)
    # Bits of negative floats increase as the value decreases: flip all bits; else only the sign.
    return np.where(bits >> 31, ~bits, bits | np.uint32(0x80000000))
