# SPDX-License-Identifier: Apache-2.0
"""Batches with Zipf ids: the same arrays for every library, from a seed.

The rank of an id is drawn from a Zipf law over the table's rows, by the inverse of its continuous
form. Ranks are then scattered over the table, so that hot rows do not lie side by side and share
cache lines: an encoder that numbers ids by falling count would make every library faster.
"""

from math import gcd
from typing import NamedTuple

import numpy as np

from harness.configs import Config

ALPHA = 1.05


class Arrays(NamedTuple):
    """One batch: dense (B, 13) float32, ids (B, F) int64, labels (B,) float32."""

    dense: np.ndarray
    ids: np.ndarray
    labels: np.ndarray


def make_batches(config: Config, size: int, count: int, seed: int = 0) -> list[Arrays]:
    """Return `count` batches of `size` rows."""
    rng = np.random.default_rng(seed)
    return [_batch(config, size, rng) for _ in range(count)]


def mean_unique(config: Config, batches: list[Arrays]) -> float:
    """Distinct rows that a batch looks up, all tables together."""
    unique = [len(np.unique(batch.ids[:, f])) for batch in batches for f in range(config.features)]
    return sum(unique) / len(batches)


def _batch(config: Config, size: int, rng: np.random.Generator) -> Arrays:
    dense = rng.standard_normal((size, config.num_dense), dtype=np.float32)
    ids = np.stack([_scatter(_ranks(rows, size, rng), rows) for rows in config.rows], axis=1)
    return Arrays(dense, ids, (rng.random(size) < 0.25).astype(np.float32))


def _ranks(rows: int, size: int, rng: np.random.Generator) -> np.ndarray:
    power = 1 - ALPHA
    drawn = (1 + rng.random(size) * ((rows + 1) ** power - 1)) ** (1 / power)
    return np.minimum(drawn.astype(np.int64) - 1, rows - 1)


def _scatter(ranks: np.ndarray, rows: int) -> np.ndarray:
    step = max(1, int(rows * 0.618))
    while gcd(step, rows) != 1:
        step += 1
    return ranks * step % rows
