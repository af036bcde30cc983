# SPDX-License-Identifier: Apache-2.0
"""What makes a row clicked: effects of the integers, a weight per id, and planted pairs of ids.

The three parts are kept apart so that calibration can give each its share of the logit's variance.
A pair of columns contributes the dot product of two vectors, one per id; the vectors are centred
on the ids' frequencies, so a model that only adds up columns sees next to none of it. Weights and
vectors shrink with the rank, and all ids beyond `LAST_RANK` share one: what a frequency cut drops
carries little. A row costs about 0.4 us.
"""

from itertools import combinations

import numpy as np

from sparsetrain.data.synthetic.figures import CATEGORIES
from sparsetrain.data.synthetic.laws import IntegerLaw
from sparsetrain.data.synthetic.sample import Sample, Sampler
from sparsetrain.data.synthetic.streams import Stream

LAST_RANK = 20_000
PAIRS, WIDTH = 16, 4
_HALF_RANK = 3.0  # the rank at which a weight's variance has halved
_UNPAIRED = ("C9", "C20", "C22")  # nearly constant or mostly missing: little to pair


class Effects:
    """The planted truth of one seed, not yet scaled."""

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
        """Return the integers', the ids' and the pairs' part of the logit, float64 (3, n)."""
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
    """A parabola in the standardised logarithm, and a constant where the value is missing."""

    def __init__(self, law: IntegerLaw, stream: Stream) -> None:
        grid = np.log(law.draw((np.arange(4096) + 0.5) / 4096) + 4.0)
        self._centre, self._spread = grid.mean(), grid.std()
        self._slope, self._bend, self._missing = stream.normal(3) * (1.0, 0.5, 0.5)

    def __call__(self, values: np.ndarray, absent: np.ndarray) -> np.ndarray:
        z = (np.log(values + 4.0) - self._centre) / self._spread  # values start at -3
        z = np.clip(z, -3.0, 3.0)
        return np.where(absent, self._missing, (self._slope + self._bend * z) * z)


def _frequencies(sampler: Sampler, column: int) -> np.ndarray:
    """Share of the missing, of ranks 1 to at most `LAST_RANK`, and of all beyond: (L + 2,)."""
    missing = sampler.missing_rate.get(CATEGORIES[column], 0.0)
    mass = sampler.categories[column].mass(LAST_RANK) * (1.0 - missing)
    return np.concatenate([[missing], mass, [max(0.0, 1.0 - missing - mass.sum())]])


def _id_table(frequencies: np.ndarray, width: int, stream: Stream) -> np.ndarray:
    """Normal numbers that shrink with the rank: (L + 2, width) float64, zero beyond rank L."""
    ranks = np.arange(len(frequencies))
    shrink = 1.0 / np.sqrt(1.0 + ranks / _HALF_RANK)
    shrink[-1] = 0.0
    return stream.normal(len(ranks), width) * shrink[:, None]


def _standardised(vectors: np.ndarray, frequencies: np.ndarray) -> np.ndarray:
    """Mean zero and mean square one over the rows of the data, so that pairs weigh alike."""
    centred = vectors - frequencies @ vectors
    return (centred / np.sqrt(frequencies @ centred**2)).astype(np.float32)


def _choose(items: list, count: int, stream: Stream) -> list:
    order = np.argsort(stream.uniform(len(items)), kind="stable")
    return [items[i] for i in sorted(order[:count])]
