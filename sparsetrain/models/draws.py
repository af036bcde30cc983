# SPDX-License-Identifier: Apache-2.0
"""`Draws`: counter-based random numbers of one step, for negatives and masks made on the host.

A number is a hash of the seed, the step, a name, the row's number in the batch and the place within
the row. So draws are the same after a resume, and however a batch is cut into parts.
"""

from __future__ import annotations

from typing import TypeVar

import numpy as np

from sparsetrain.data.ragged import Ragged
from sparsetrain.errors import ConfigError
from sparsetrain.kernels.table_formats.noise import keys_of
from sparsetrain.system.argument_checks import require_int

Like = TypeVar("Like", np.ndarray, Ragged)
_ROW, _PLACE = np.uint64(0x9E3779B97F4A7C15), np.uint64(0xD1B54A32D192ED03)
_FIRST, _SECOND = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)


class Draws:
    """Random numbers for the rows of a step's batch.

    Parameters
    ----------
    seed, step : int
    first_row : int
        Position of the first row within the batch.

    Examples
    --------
    >>> Draws(seed=0, step=0).integers("negative", 10, like=np.zeros((2, 3)))
    array([[2, 0, 6],
           [0, 5, 0]])
    """

    def __init__(self, seed: int, step: int, first_row: int = 0) -> None:
        self._seed, self._step, self._first_row = seed, step, first_row

    def integers(self, name: str, high: int, like: Like, low: int = 0) -> Like:
        """Integers uniform in [low, high), one for each element of an array or token of a `Ragged`.

        `name` distinguishes the draws of one step. The first axis of an array is its rows.
        """
        if high <= low:
            raise ConfigError(f"draws of {name!r}: high is {high}, not above low, {low}")
        span = np.uint64(require_int("high", high - low))
        words, as_like = self._words(name, like)
        scaled = (words >> np.uint64(32)) * span >> np.uint64(32)
        return as_like(scaled.astype(np.int64) + low)

    def by_chance(self, name: str, cumulative: np.ndarray, like: Like) -> Like:
        """Integers from a distribution, given its cumulative probabilities, which increase to 1."""
        chance = self.uniform(name, like)
        if isinstance(chance, Ragged):
            return Ragged(np.searchsorted(cumulative, chance.ids, side="right"), chance.offsets)
        return np.searchsorted(cumulative, chance, side="right")

    @property
    def of_batch(self) -> Draws:
        """Draws that all parts of a batch share; pass an array (1, K) to draw K numbers."""
        return Draws(self._seed, self._step)

    def uniform(self, name: str, like: Like) -> Like:
        """Numbers uniform in [0, 1), as `integers`; for a `Ragged` they replace its ids."""
        words, as_like = self._words(name, like)
        return as_like((words >> np.uint64(11)) * 2.0**-53)

    def _words(self, name: str, like: Like):
        if isinstance(like, Ragged):
            words = self._hashed(name, like.rows(), like.places())
            return words, lambda found: Ragged(found, like.offsets)
        array = np.asarray(like)
        rows, places = np.divmod(np.arange(array.size), max(array.size // len(array), 1))
        return self._hashed(name, rows, places), lambda found: found.reshape(array.shape)

    def _hashed(self, name: str, rows: np.ndarray, places: np.ndarray) -> np.ndarray:
        low, high = keys_of(self._seed, name, self._step)
        words = (rows + self._first_row).astype(np.uint64) * _ROW
        words = words + places.astype(np.uint64) * _PLACE ^ np.uint64(high << 32 | low)
        words = (words ^ words >> np.uint64(30)) * _FIRST
        words = (words ^ words >> np.uint64(27)) * _SECOND
        return words ^ words >> np.uint64(31)
