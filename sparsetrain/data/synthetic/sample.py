# SPDX-License-Identifier: Apache-2.0
"""Sampling of rows: integer values and category ranks, drawn from each column's distribution.

Random numbers depend only on a key, so chunks can be made at any time and in any order. A category
is drawn as a *rank* (1 is the most common value): from a table for the first ranks, and beyond them
from a power law. The inverse of that law has a closed form, so ten million values need no table of
that size. A draw takes about 50 ns. The statistics in `criteo_figures.json` are aggregates.
"""

import json
from functools import cache
from importlib import resources
from typing import Any, NamedTuple

import numpy as np

INTEGERS = tuple(f"I{i}" for i in range(1, 14))
CATEGORIES = tuple(f"C{i}" for i in range(1, 27))


@cache
def load_figures() -> dict[str, Any]:
    """Read the statistics that come with the package.

    `missing_together` has groups of columns that are null in the same rows, each with its share of
    all rows; `integers` the shares of negative values and of zero among those present, and the
    quantiles of the rest at `quantile_levels`; `categories` the number of values, the exponent of
    the tail, and the mass of the first `head_ranks[i]` values.
    """
    figures: dict[str, Any] = json.loads(
        resources.files(__package__).joinpath("criteo_figures.json").read_text("utf-8")
    )
    return figures


WORLD, PILOT, CHUNK = range(3)  # purpose of a stream: the first part of its key


class Stream:
    """Random numbers with the key `(seed, *key)`; different keys give independent streams.

    Only the raw 64-bit output of Philox is used, since NumPy promises never to change it; the
    distributions of `numpy.random.Generator` may change between versions. A uniform number costs
    about 6 ns.

    Parameters
    ----------
    seed : int
        Not negative.
    *key : int
        Not negative; the first is one of `WORLD`, `PILOT`, `CHUNK`.
    """

    def __init__(self, seed: int, *key: int) -> None:
        self._bits = np.random.Philox(np.random.SeedSequence(seed, spawn_key=key))

    def integers(self, count: int) -> np.ndarray:
        """Return `count` numbers, uint64 (count,)."""
        return self._bits.random_raw(count)

    def uniform(self, count: int) -> np.ndarray:
        """Return `count` numbers in [0, 1), float64 (count,)."""
        return (self._bits.random_raw(count) >> 11) * 2.0**-53

    def normal(self, *shape: int) -> np.ndarray:
        """Return standard normal numbers, float64 of `shape`, by the Box-Muller transform."""
        count = int(np.prod(shape))
        radius = np.sqrt(-2.0 * np.log1p(-self.uniform(count)))
        return (radius * np.cos(2.0 * np.pi * self.uniform(count))).reshape(shape)


# Criteo's negative integers are nearly all -1; these are the shares of -1, and of -1 or -2.
_NEGATIVE_STEPS = (0.992, 0.9995)


class IntegerLaw:
    """A distribution with atoms at the negative values and zero, and log-linear quantiles above."""

    def __init__(self, negative: float, zero: float, positive: list, levels: list) -> None:
        self._negative = negative
        self._atoms = negative + zero
        self._levels = np.array(levels)
        self._logs = np.log(positive)

    def draw(self, uniform: np.ndarray) -> np.ndarray:
        """Return one value per uniform number, int32 of the same shape."""
        level = (uniform - self._atoms) / (1.0 - self._atoms)
        # Slightly above, so that exp(log(3)) is not floored to 2.
        positive = np.exp(np.interp(level, self._levels, self._logs)) + 1e-6
        values = np.where(uniform < self._atoms, 0.0, positive).astype(np.int32)
        if self._negative:
            below = np.flatnonzero(uniform < self._negative)
            step = np.searchsorted(_NEGATIVE_STEPS, uniform[below] / self._negative, side="right")
            values[below] = -1 - step
        return values


class CategoryLaw:
    """Distribution of ranks 1 to `values`: a table for the head, `rank ** -tail` beyond it.

    With more than `max_cardinality` values, the mass of dropped ones is spread over the kept ones.
    """

    def __init__(
        self,
        values: int,
        tail: float | None,
        head: list,
        ranks: list,
        max_cardinality: int | None = None,
    ) -> None:
        self.values = min(values, max_cardinality or values)
        known = ranks[: len(head)]
        first = np.arange(1, min(known[-1], self.values) + 1)
        masses = np.interp(np.log(first), np.log(known), head)
        self._head = masses if self.values > len(masses) else masses / masses[-1]
        # The exponent of the integral of rank ** -tail; no column's tail is exactly 1.
        self._power = 1.0 - (tail or 0.0)
        self._ends = (np.array([len(masses), self.values]) + 0.5) ** self._power

    def draw(self, uniform: np.ndarray) -> np.ndarray:
        """Return one rank per uniform number in [0, 1), int32 of the same shape."""
        ranks = np.searchsorted(self._head, uniform, side="right").astype(np.int32) + 1
        beyond = np.flatnonzero(ranks > len(self._head))
        if beyond.size:
            ranks[beyond] = self._draw_tail(uniform[beyond])
        return ranks

    def _draw_tail(self, uniform: np.ndarray) -> np.ndarray:
        share = (uniform - self._head[-1]) / (1.0 - self._head[-1])
        start, stop = self._ends
        rank = np.floor((start + share * (stop - start)) ** (1.0 / self._power) + 0.5)
        return np.clip(rank, len(self._head) + 1, self.values)

    def mass(self, limit: int) -> np.ndarray:
        """Return the probability of ranks 1 to `limit`, float64 (min(limit, values),)."""
        head = np.diff(self._head, prepend=0.0)
        if limit <= len(head) or self.values == len(head):
            return head[:limit]
        start, stop = self._ends
        edges = (np.arange(len(head), min(limit, self.values) + 1) + 0.5) ** self._power
        tail = np.diff(edges) / (stop - start) * (1.0 - self._head[-1])
        return np.concatenate([head, tail])


class Sample(NamedTuple):
    """Sampled rows, by column."""

    integers: np.ndarray  # (13, n) int32; 0 where missing
    absent: np.ndarray  # (13, n) bool: which integers are missing
    ranks: np.ndarray  # (26, n) int32: 1 the commonest category; 0 where missing


class Sampler:
    """Sampler of rows; columns are independent, except for groups that are missing together."""

    def __init__(self, max_cardinality: int | None = None) -> None:
        known = load_figures()
        levels, ranks = known["quantile_levels"], known["head_ranks"]
        self._missing = known["missing_together"]
        self.integers = [IntegerLaw(**known["integers"][n], levels=levels) for n in INTEGERS]
        self.categories = [
            CategoryLaw(**known["categories"][n], ranks=ranks, max_cardinality=max_cardinality)
            for n in CATEGORIES
        ]
        self.missing_rate = {c: rate for columns, rate in self._missing for c in columns}

    def draw(self, stream: Stream, rows: int) -> Sample:
        """Take `rows` rows from `stream`; the same stream gives the same rows."""
        absent: dict[str, np.ndarray] = {}
        for columns, rate in self._missing:
            absent |= dict.fromkeys(columns, stream.uniform(rows) < rate)
        nowhere = np.zeros(rows, bool)
        gaps = np.stack([absent.get(name, nowhere) for name in INTEGERS])
        integers = np.stack([law.draw(stream.uniform(rows)) for law in self.integers])
        integers[gaps] = 0
        ranks = np.stack([law.draw(stream.uniform(rows)) for law in self.categories])
        for name, column in zip(CATEGORIES, ranks, strict=True):
            if name in absent:
                column[absent[name]] = 0
        return Sample(integers, gaps, ranks)
