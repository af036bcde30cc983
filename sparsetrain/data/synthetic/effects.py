# SPDX-License-Identifier: Apache-2.0
"""Planted effects on clicks, scaled to a given click rate and best possible AUC; the best scores.

The logit is a sum of effects of the integers, weights of the ids, and effects of pairs of ids; the
three are kept apart so that calibration can give each its share of the variance. A pair of columns
contributes the dot product of two vectors, one per id, centered by the ids' frequencies, so a model
that only adds up columns captures almost none of it. Weights and vectors shrink with an id's rank
by frequency, and all ids beyond `LAST_RANK` share one of each, so a frequency threshold loses
little. A row costs about 0.4 us.

Click rate and AUC depend monotonically on bias and scale, so two nested bisections find bias and
scale. A bisection step takes only 20 us, since the pilot logits are sorted once and averaged in
groups.

In the best possible score a row with probability p counts as a click with weight p and as no click
with weight 1 - p. The best AUC is the AUC of the true logits under these weights, and the best
logloss is the mean entropy. Weights are summed in 2^16 bins of the logit, which take 1 MB for any
number of rows; a pair inside a bin counts half, which changes the AUC by less than 1e-7.
"""

from collections.abc import Callable
from itertools import combinations
from typing import NamedTuple

import numpy as np

from sparsetrain.data.synthetic.sample import CATEGORIES, IntegerLaw, Sample, Sampler, Stream
from sparsetrain.errors import ConfigError

LAST_RANK = 20_000
PAIRS, WIDTH = 16, 4
_HALF_RANK = 3.0  # rank at which a weight's variance is half its initial value
_UNPAIRED = ("C9", "C20", "C22")  # nearly constant or mostly missing, so unsuitable for pairs


class Effects:
    """The planted effects of one seed, before scaling."""

    def __init__(self, sampler: Sampler, stream: Stream) -> None:
        self._integers = [_IntegerEffect(law, stream) for law in sampler.integers]
        frequencies = [_frequencies(sampler, c) for c in range(len(CATEGORIES))]
        self._weights = [_id_table(f, 1, stream).ravel() for f in frequencies]
        able = [c for c, name in enumerate(CATEGORIES) if name not in _UNPAIRED]
        self.pairs = _choose(list(combinations(able, 2)), PAIRS, stream)
        self._vectors = {
            c: _standardised(_id_table(frequencies[c], WIDTH, stream), frequencies[c]) for c in able
        }

    def parts(self, sample: Sample) -> np.ndarray:
        """Return the parts of the logit from integers, ids and pairs, float64 (3, n)."""
        slots = np.minimum(sample.ranks, LAST_RANK + 1)
        integers = sum(
            effect(values, absent)
            for effect, values, absent in zip(
                self._integers, sample.integers, sample.absent, strict=True
            )
        )
        ids = sum(w.take(column) for w, column in zip(self._weights, slots, strict=True))
        used = {c for pair in self.pairs for c in pair}
        vectors = {c: self._vectors[c].take(slots[c], axis=0) for c in used}
        pairs = sum(np.einsum("nd,nd->n", vectors[a], vectors[b]) for a, b in self.pairs)
        return np.stack([integers, ids, pairs])


class _IntegerEffect:
    """A parabola in the standardized logarithm, and a constant where the value is missing."""

    def __init__(self, law: IntegerLaw, stream: Stream) -> None:
        grid = np.log(law.draw((np.arange(4096) + 0.5) / 4096) + 4.0)
        self._centre, self._spread = grid.mean(), grid.std()
        self._slope, self._bend, self._missing = stream.normal(3) * (1.0, 0.5, 0.5)

    def __call__(self, values: np.ndarray, absent: np.ndarray) -> np.ndarray:
        z = (np.log(values + 4.0) - self._centre) / self._spread  # values start at -3
        z = np.clip(z, -3.0, 3.0)
        return np.where(absent, self._missing, (self._slope + self._bend * z) * z)


def _frequencies(sampler: Sampler, column: int) -> np.ndarray:
    """Return the shares of missing values, ranks 1 to `LAST_RANK`, and the rest, (L + 2,)."""
    missing = sampler.missing_rate.get(CATEGORIES[column], 0.0)
    mass = sampler.categories[column].mass(LAST_RANK) * (1.0 - missing)
    return np.concatenate([[missing], mass, [max(0.0, 1.0 - missing - mass.sum())]])


def _id_table(frequencies: np.ndarray, width: int, stream: Stream) -> np.ndarray:
    """Return normal numbers that shrink with the rank, (L + 2, width) float64; the last is 0."""
    ranks = np.arange(len(frequencies))
    shrink = 1.0 / np.sqrt(1.0 + ranks / _HALF_RANK)
    shrink[-1] = 0.0
    return stream.normal(len(ranks), width) * shrink[:, None]


def _standardised(vectors: np.ndarray, frequencies: np.ndarray) -> np.ndarray:
    """Normalize to mean 0 and mean square 1 over the rows, so that pairs weigh equally."""
    centred = vectors - frequencies @ vectors
    return (centred / np.sqrt(frequencies @ centred**2)).astype(np.float32)


def _choose(items: list, count: int, stream: Stream) -> list:
    order = np.argsort(stream.uniform(len(items)), kind="stable")
    return [items[i] for i in sorted(order[:count])]


SHARES = np.array([0.35, 0.30, 0.35])  # of the logit's variance: integers, ids, pairs
_GROUPS = 4096
_MAX_SCALE = 64.0


class Calibration(NamedTuple):
    """`logit = bias + weights @ parts`."""

    bias: float
    weights: np.ndarray  # (3,) float64

    def logits(self, parts: np.ndarray) -> np.ndarray:
        """Return the true logits, float64 (n,), of `parts` (3, n)."""
        integers, ids, pairs = self.weights
        return self.bias + integers * parts[0] + ids * parts[1] + pairs * parts[2]


def calibrate(parts: np.ndarray, click_rate: float, bayes_auc: float) -> Calibration:
    """Find the bias and the scale at which the pilot rows have this click rate and best AUC.

    Parameters
    ----------
    parts : ndarray (3, n) float64
        Unscaled effects of pilot rows; n a multiple of 4096.
    click_rate, bayes_auc : float

    Raises
    ------
    ConfigError
        If no scale reaches `bayes_auc`.
    """
    weights = np.sqrt(SHARES) / parts.std(axis=1)
    z = np.sort(Calibration(0.0, weights).logits(parts)).reshape(_GROUPS, -1).mean(axis=1)

    def bias_at(scale: float) -> float:
        reach = 50.0 + scale * float(np.abs(z).max())
        return _bisect(lambda bias: sigmoid(bias + scale * z).mean() - click_rate, -reach, reach)

    def auc_at(scale: float) -> float:
        p = sigmoid(bias_at(scale) + scale * z)
        return _weighted_auc(1.0 - p, p)

    scale = _bisect(lambda s: auc_at(s) - bayes_auc, 0.0, _MAX_SCALE)
    if abs(auc_at(scale) - bayes_auc) > 1e-4:
        raise ConfigError(f"no data with bayes_auc={bayes_auc} can be made: take one nearer to 0.8")
    return Calibration(bias_at(scale), scale * weights)


def _bisect(rising: Callable[[float], float], low: float, high: float) -> float:
    for _ in range(50):
        middle = 0.5 * (low + high)
        low, high = (middle, high) if rising(middle) < 0.0 else (low, middle)
    return 0.5 * (low + high)


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
            _weighted_auc(*self._weights),
            self._entropy / self.rows,
            clicks / self.rows,
            self.rows,
        )


def sigmoid(x: np.ndarray) -> np.ndarray:
    """Return `1 / (1 + exp(-x))` without overflow."""
    return np.exp(-np.logaddexp(0.0, -x))


def _weighted_auc(negatives: np.ndarray, positives: np.ndarray) -> float:
    """Return the AUC of weights (k,) in ascending order of score; pairs in one entry count half."""
    below = np.cumsum(negatives) - 0.5 * negatives
    return float((positives * below).sum() / (positives.sum() * negatives.sum()))
