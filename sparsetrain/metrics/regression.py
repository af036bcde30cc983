# SPDX-License-Identifier: Apache-2.0
"""`RegressionMetrics`: errors of real predictions over any number of rows."""

import numpy as np

from sparsetrain.errors import ConfigError
from sparsetrain.metrics.means import check_finite
from sparsetrain.metrics.scores import Scores, ratio


class RegressionMetrics:
    """Errors of real predictions that are fed batch by batch, and can be merged.

    Sums are float64: the same batches in the same order give the same bits.

    Examples
    --------
    >>> metrics = RegressionMetrics()
    >>> metrics.update(np.array([2.5, 4.0]), np.array([3.0, 4.0]))
    >>> metrics.result()["mae"]
    0.25
    """

    SCORES = ("rmse", "mae", "rows", "constant_rmse", "mean_label", "mean_prediction")

    def __init__(self) -> None:
        self._rows = 0
        self._squared = self._absolute = 0.0  # sums of errors
        self._label = self._prediction = 0.0  # means
        self._spread = 0.0  # sum of squared distances of labels from their mean

    def update(self, predictions: np.ndarray, labels: np.ndarray) -> None:
        """Add rows.

        Parameters
        ----------
        predictions, labels : ndarray (B,) of a float type

        Raises
        ------
        ConfigError
            If the shapes do not fit.
        DataError, NumericalError
            If a label or a prediction is not finite. Rows are counted from the first that was
            added.
        """
        found, wanted = self._checked(predictions, labels)
        if not len(found):
            return
        distance = found - wanted
        part = RegressionMetrics()
        part._rows = len(found)
        part._squared, part._absolute = float(distance @ distance), float(np.abs(distance).sum())
        part._label, part._prediction = float(wanted.mean()), float(found.mean())
        part._spread = float(np.square(wanted - part._label).sum())
        self.merge(part)

    def _checked(
        self, predictions: np.ndarray, labels: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return both as float64; raise before anything is added."""
        found, wanted = (np.asarray(array) for array in (predictions, labels))
        if found.ndim != 1 or found.shape != wanted.shape:
            raise ConfigError(
                f"predictions {found.shape} and labels {wanted.shape} must be two vectors of one "
                "length"
            )
        return check_finite(found, wanted, self._rows)

    def merge(self, other: "RegressionMetrics") -> None:
        """Add the rows that `other` has seen; `other` stays as it is."""
        rows = self._rows + other._rows
        if not rows:
            return
        share, apart = other._rows / rows, other._label - self._label
        self._spread += other._spread + apart * apart * self._rows * share
        self._label += apart * share
        self._prediction += (other._prediction - self._prediction) * share
        self._squared += other._squared
        self._absolute += other._absolute
        self._rows = rows

    def result(self) -> Scores:
        """Return the scores of all rows so far.

        Returns
        -------
        dict
            `rmse`, `mae` : root of the mean squared error, and mean absolute error.

            `rows` : how many rows.

            `constant_rmse` : the RMSE of always predicting the mean label of these rows.

            `mean_label`, `mean_prediction` : means.

            Without rows all but `rows` are None.
        """
        squared, spread = ratio(self._squared, self._rows), ratio(self._spread, self._rows)
        return {
            "rmse": None if squared is None else float(np.sqrt(squared)),
            "mae": ratio(self._absolute, self._rows),
            "rows": self._rows,
            "constant_rmse": None if spread is None else float(np.sqrt(spread)),
            "mean_label": self._label if self._rows else None,
            "mean_prediction": self._prediction if self._rows else None,
        }
