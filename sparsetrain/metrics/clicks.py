# SPDX-License-Identifier: Apache-2.0
"""`ClickMetrics`: AUC, logloss, entropy, calibration and accuracy over any number of rows."""

from __future__ import annotations

import numpy as np

from sparsetrain.errors import ConfigError, DataError, NumericalError
from sparsetrain.metrics.auc import ClickOrder
from sparsetrain.metrics.checks import check_weights, total
from sparsetrain.metrics.scores import Scores, entropy, ratio


class ClickMetrics:
    """Metrics of clicks, computed batch by batch; metrics of parts of the data can be merged.

    The same batches in the same order give the same bits. Counts merge exactly; the sums of losses
    and of predictions are float64, so a different order may change their last digits.

    Examples
    --------
    >>> metrics = ClickMetrics()
    >>> metrics.update(np.array([2.0, -1.0, 0.5]), np.array([1, 0, 1]))
    >>> metrics.result()["auc"]
    1.0
    """

    # Keys of `result`, known without allocating the histograms.
    SCORES = (
        *("auc", "auc_bound", "logloss", "ne", "calibration", "accuracy"),
        *("rows", "constant_logloss", "positive_rate"),
    )

    def __init__(self) -> None:
        self._order = ClickOrder()
        self._loss = self._prediction = self._right = 0.0

    def update(
        self, logits: np.ndarray, labels: np.ndarray, weights: np.ndarray | None = None
    ) -> None:
        """Add rows.

        Parameters
        ----------
        logits : ndarray (B,) of a float type
            Log-odds of a click; the AUC uses them as float32.
        labels : ndarray (B,) of bool, integers or floats
            1 for a click, 0 for none.
        weights : ndarray (B,) of numbers of 0 or more, optional
            Weight of each row in all scores except `rows`; by default 1. A pair of
            rows counts in the AUC with the product of their weights.

        Raises
        ------
        ConfigError
            If the shapes do not fit.
        DataError
            If a label is neither 0 nor 1, or a weight is negative or not finite.
        NumericalError
            If a logit is NaN. Messages count rows from the first row that was added.
        """
        z, clicks = self._checked(np.asarray(logits), np.asarray(labels))
        factors = check_weights(weights, len(z), self._order.rows)
        self._order.add(z, clicks, factors)
        losses, predictions = _losses_and_predictions(z, clicks)
        self._loss += total(losses, factors)
        self._prediction += total(predictions, factors)
        self._right += total((z > 0) == clicks, factors)

    def merge(self, other: ClickMetrics) -> None:
        """Add the rows that `other` has seen; `other` does not change."""
        self._order.merge(other._order)
        self._loss += other._loss
        self._prediction += other._prediction
        self._right += other._right

    def result(self) -> Scores:
        """Return the scores of all rows so far.

        Returns
        -------
        dict
            `auc` : probability that a click is scored above a row without one, ties counted half.

            `auc_bound` : largest possible difference between `auc` and the exact AUC of the float32
            logits: 0 up to 2^22 rows, and above only from bins with several distinct logits.

            `logloss` : mean cross-entropy in nats; infinite if an infinite logit was wrong.

            `ne` : normalized entropy, `logloss / constant_logloss`; below 1 is better than a
            constant.

            `calibration` : mean prediction divided by the click rate; 1 is best.

            `accuracy` : share of rows classified correctly with a threshold of 0.5.
            `rows` : number of rows.
            `constant_logloss`, `positive_rate` : logloss of always predicting the click rate of
            these rows, and that rate.

            An undefined score is None, since JSON has no NaN: without rows, all but `rows`; with
            one class only, `auc`, `auc_bound` and `ne`; without a click, `calibration`.
        """
        weight, clicks = self._order.weight, self._order.clicks
        rate = ratio(clicks, weight)
        logloss, constant = (
            ratio(self._loss, weight),
            entropy([rate, 1.0 - rate]) if rate is not None else None,
        )
        return {
            "auc": self._order.auc(),
            "auc_bound": self._order.bound(),
            "logloss": logloss,
            "ne": ratio(logloss, constant),
            "calibration": ratio(self._prediction, clicks),
            "accuracy": ratio(self._right, weight),
            "rows": self._order.rows,
            "constant_logloss": constant,
            "positive_rate": rate,
        }

    def _checked(self, logits: np.ndarray, labels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return logits as float64 and labels as bool; raise before anything is added."""
        if logits.ndim != 1 or logits.shape != labels.shape:
            raise ConfigError(
                f"logits {logits.shape} and labels {labels.shape} must be two vectors of one length"
            )
        clicks = labels == 1
        wrong = ~clicks & (labels != 0)
        if wrong.any():
            row = int(wrong.argmax())
            raise DataError(f"row {self._row(row)}: the label is {labels[row]}, but must be 0 or 1")
        z = logits.astype(np.float64)
        if np.isnan(z).any():
            row = int(np.isnan(z).argmax())
            raise NumericalError(
                f"row {self._row(row)}: the logit is NaN; train with a lower learning rate"
            )
        return z, clicks

    def _row(self, offset: int) -> int:
        return self._order.rows + offset


def _losses_and_predictions(z: np.ndarray, clicks: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the cross-entropies and probabilities, (B,) each; logits may be infinite."""
    tail = np.exp(-np.abs(z))
    loss = np.log1p(tail) + np.maximum(np.where(clicks, -z, z), 0.0)
    return loss, np.where(z < 0.0, tail, 1.0) / (1.0 + tail)
