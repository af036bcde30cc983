# SPDX-License-Identifier: Apache-2.0
"""`RegressionMetrics`: errors of real predictions over any number of rows."""

from __future__ import annotations

import numpy as np

from sparsetrain.metrics.checks import total
from sparsetrain.metrics.means import MeanMetrics
from sparsetrain.metrics.scores import Scores


class RegressionMetrics(MeanMetrics):
    """Errors of real predictions, computed batch by batch; metrics of parts can be merged.

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
        super().__init__()
        self._spread = 0.0  # sum of squared deviations of labels from their mean

    def _of_rows(self, predictions: np.ndarray, labels: np.ndarray) -> dict[str, np.ndarray]:
        found = predictions.reshape(-1)
        distance = found - labels
        return {
            "squared": np.square(distance),
            "absolute": np.abs(distance),
            "label": labels,
            "prediction": found,
        }

    def _add(self, found: np.ndarray, wanted: np.ndarray, weights: np.ndarray | None) -> None:
        weight = len(wanted) if weights is None else float(weights.sum())
        if weight:
            mean = total(wanted, weights) / weight
            self._spread_by(weight, mean, total(np.square(wanted - mean), weights))
        super()._add(found, wanted, weights)

    def merge(self, other: MeanMetrics) -> None:
        """Add the rows that `other` has seen; `other` does not change."""
        assert isinstance(other, RegressionMetrics)
        if other._weight:
            self._spread_by(other._weight, other._means()["label"], other._spread)
        super().merge(other)

    def _spread_by(self, weight: float, mean: float, spread: float) -> None:
        """Add more labels' squared deviations from their mean; call it before adding their sums."""
        apart = mean - self._means().get("label", mean)
        self._spread += spread + apart * apart * self._weight * weight / (self._weight + weight)

    def result(self) -> Scores:
        """Return the scores of all rows so far.

        Returns
        -------
        dict
            `rmse`, `mae` : root of the mean squared error, and mean absolute error.

            `rows` : number of rows.

            `constant_rmse` : the RMSE of always predicting the mean label of these rows.

            `mean_label`, `mean_prediction` : means.

            Without rows, all but `rows` are None.
        """
        found = self._means()
        root = float(np.sqrt(found["squared"])) if found else None
        return {
            "rmse": root,
            "mae": found.get("absolute"),
            "rows": self._rows,
            "constant_rmse": float(np.sqrt(self._spread / self._weight)) if found else None,
            "mean_label": found.get("label"),
            "mean_prediction": found.get("prediction"),
        }
