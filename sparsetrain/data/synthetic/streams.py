# SPDX-License-Identifier: Apache-2.0
"""Random numbers that depend on a key alone, so any chunk can be made at any time and in any order.

Only the raw 64-bit output of Philox is used, because NumPy promises that stream for ever; the
distributions of `numpy.random.Generator` may change between versions. A uniform number costs
about 6 ns.
"""

import numpy as np

WORLD, PILOT, CHUNK = range(3)  # what a stream is for: the first part of its key


class Stream:
    """Numbers keyed by `(seed, *key)`; two different keys give independent streams.

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
