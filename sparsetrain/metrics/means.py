# SPDX-License-Identifier: Apache-2.0
"""`MeanMetrics`: base class of metrics that are means over rows."""

from __future__ import annotations

from abc import ABC, abstractmethod

import numpy as np

from sparsetrain.errors import ConfigError
from sparsetrain.metrics.checks import check_finite, check_weights, total


class MeanMetrics(ABC):
    """Sums over rows, computed batch by batch; sums of parts of the data can be merged.

    Sums are float64: the same batches in the same order give the same bits.
    """

    def __init__(self, columns: int = 1) -> None:
        self._columns, self._rows = columns, 0
        self._weight: float = 0  # the sum of the weights of rows
        self._sums: dict[str, float] = {}

    @abstractmethod
    def _of_rows(self, predictions: np.ndarray, labels: np.ndarray) -> dict[str, np.ndarray]:
        """Return the numbers (B,) to sum over rows, by name, from float64 arrays."""

    def update(
        self, predictions: np.ndarray, labels: np.ndarray, weights: np.ndarray | None = None
    ) -> None:
        """Add rows.

        Parameters
        ----------
        predictions : ndarray (B,), or (B, S) with several per row, of a float type
        labels : ndarray (B,) of a float type
        weights : ndarray (B,) of numbers of 0 or more, optional
            Weight of each row in the means; by default 1.

        Raises
        ------
        ConfigError
            If the shapes do not fit.
        DataError, NumericalError
            If a label, a prediction or a weight is not finite. Messages count rows from the first
            row that was added.
        """
        found, wanted = self._checked(predictions, labels)
        self._add(found, wanted, check_weights(weights, len(wanted), self._rows))

    def _add(self, found: np.ndarray, wanted: np.ndarray, weights: np.ndarray | None) -> None:
        for name, values in self._of_rows(found, wanted).items():
            self._sums[name] = self._sums.get(name, 0.0) + total(values, weights)
        self._rows += len(wanted)
        self._weight += len(wanted) if weights is None else float(weights.sum())

    def merge(self, other: MeanMetrics) -> None:
        """Add the rows that `other` has seen; `other` does not change."""
        for name, added in other._sums.items():
            self._sums[name] = self._sums.get(name, 0.0) + added
        self._rows += other._rows
        self._weight += other._weight

    def _means(self) -> dict[str, float]:
        """Return the mean for each sum; empty without rows."""
        return {name: added / self._weight for name, added in self._sums.items() if self._weight}

    def _checked(
        self, predictions: np.ndarray, labels: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return both as float64; raise before anything is added."""
        found, wanted = (np.asarray(array) for array in (predictions, labels))
        shape = (len(wanted), *((self._columns,) if self._columns > 1 else ()))
        if wanted.ndim != 1 or found.shape not in (shape, (len(wanted), self._columns)):
            raise ConfigError(
                f"predictions {found.shape} and labels {wanted.shape} must be {shape} and "
                f"({len(wanted)},)"
            )
        return check_finite(found, wanted, self._rows)
