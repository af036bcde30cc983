# SPDX-License-Identifier: Apache-2.0
"""`MeanMetrics`: means over any number of rows, for scores that are means."""

from __future__ import annotations

from abc import ABC, abstractmethod

import numpy as np

from sparsetrain.errors import ConfigError, DataError, NumericalError


class MeanMetrics(ABC):
    """Sums over rows that are fed batch by batch, and can be merged.

    Sums are float64: the same batches in the same order give the same bits.
    """

    def __init__(self, columns: int = 1) -> None:
        self._columns, self._rows = columns, 0
        self._sums: dict[str, float] = {}

    @abstractmethod
    def _of_rows(self, predictions: np.ndarray, labels: np.ndarray) -> dict[str, np.ndarray]:
        """Float64 arrays -> the numbers (B,) of each row that are summed, by name."""

    def update(self, predictions: np.ndarray, labels: np.ndarray) -> None:
        """Add rows.

        Parameters
        ----------
        predictions : ndarray (B,), or (B, S) of several for each row, of a float type
        labels : ndarray (B,) of a float type

        Raises
        ------
        ConfigError
            If the shapes do not fit.
        DataError, NumericalError
            If a label or a prediction is not finite. Rows are counted from the first that was
            added.
        """
        checked = self._checked(predictions, labels)
        for name, values in self._of_rows(*checked).items():
            self._sums[name] = self._sums.get(name, 0.0) + float(values.sum())
        self._rows += len(checked[1])

    def merge(self, other: MeanMetrics) -> None:
        """Add the rows that `other` has seen; `other` stays as it is."""
        for name, total in other._sums.items():
            self._sums[name] = self._sums.get(name, 0.0) + total
        self._rows += other._rows

    def _means(self) -> dict[str, float]:
        """The mean of each sum; none without rows."""
        return {name: total / self._rows for name, total in self._sums.items() if self._rows}

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


def check_finite(
    predictions: np.ndarray, labels: np.ndarray, before: int
) -> tuple[np.ndarray, np.ndarray]:
    """Return both as float64; refuse values that are not finite, naming the row after `before`."""
    wide = predictions.astype(np.float64), labels.astype(np.float64)
    for name, array, error in (
        ("label", wide[1], DataError),
        ("prediction", wide[0], NumericalError),
    ):
        finite = np.isfinite(array)
        if not finite.all():
            at = tuple(int(place) for place in np.argwhere(~finite)[0])
            raise error(f"row {before + at[0]}: the {name} is {array[at]}, not finite")
    return wide
