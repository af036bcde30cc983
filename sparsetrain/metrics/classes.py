# SPDX-License-Identifier: Apache-2.0
"""`ClassMetrics`: logloss, entropy and accuracy of labels of several classes."""

from __future__ import annotations

import numpy as np

from sparsetrain.errors import ConfigError, DataError, NumericalError
from sparsetrain.metrics.checks import check_weights, total
from sparsetrain.metrics.scores import Scores, entropy, ratio


class ClassMetrics:
    """Metrics of one label with C classes, computed batch by batch.

    Parameters
    ----------
    classes : int
        Number of classes C.

    Examples
    --------
    >>> metrics = ClassMetrics(3)
    >>> logits = np.array([[2.0, 0.0, 1.0], [0.0, 0.0, 3.0]])
    >>> metrics.update(logits, np.array([0, 1]))
    >>> metrics.result()["accuracy"]
    0.5
    """

    SCORES = ("logloss", "ne", "accuracy", "rows", "constant_logloss")

    def __init__(self, classes: int) -> None:
        self._rows = 0
        self._counts = np.zeros(classes)  # the weight of each class
        self._loss = self._right = 0.0

    def update(
        self, logits: np.ndarray, labels: np.ndarray, weights: np.ndarray | None = None
    ) -> None:
        """Add rows.

        Parameters
        ----------
        logits : ndarray (B, C) of a float type
            Log-probabilities of the classes, up to a constant for each row.
        labels : ndarray (B,) of whole numbers
            The class of each row, from 0.
        weights : ndarray (B,) of numbers of 0 or more, optional
            As in `ClickMetrics.update`.

        Raises
        ------
        ConfigError
            If the shapes do not fit.
        DataError
            If a label is not a class, or a weight is negative or not finite.
        NumericalError
            If a logit is NaN. Messages count rows from the first row that was added.
        """
        z, wanted = self._checked(logits, labels)
        factors = check_weights(weights, len(z), self._rows)
        top = z.max(axis=1, initial=-np.inf)
        own = z[np.arange(len(z)), wanted]
        losses = np.log(np.exp(z - top[:, None]).sum(axis=1)) + top - own
        self._loss += total(losses, factors)
        # If classes tie for the highest logit, the lowest class is predicted.
        self._right += total(z.argmax(axis=1) == wanted, factors)
        self._counts += np.bincount(wanted, factors, minlength=len(self._counts))
        self._rows += len(z)

    def _checked(self, logits: np.ndarray, labels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return logits as float64 and labels as int64; raise before anything is added."""
        classes, before = len(self._counts), self._rows
        if labels.ndim != 1 or logits.shape != (len(labels), classes):
            raise ConfigError(
                f"logits {logits.shape} and labels {labels.shape} must be (B, {classes}) and (B,)"
            )
        outside = ~np.isin(labels, np.arange(classes))
        if outside.any():
            row = int(outside.argmax())
            raise DataError(
                f"row {before + row}: the label is {labels[row]}, but the {classes} classes are 0 "
                f"to {classes - 1}"
            )
        z = logits.astype(np.float64)
        if np.isnan(z).any():
            raise NumericalError(f"row {before + int(np.isnan(z).any(1).argmax())}: a logit is NaN")
        return z, labels.astype(np.int64)

    def merge(self, other: ClassMetrics) -> None:
        """Add the rows that `other` has seen; `other` does not change."""
        self._rows += other._rows
        self._counts += other._counts
        self._loss += other._loss
        self._right += other._right

    def result(self) -> Scores:
        """Return the scores of all rows so far.

        Returns
        -------
        dict
            `logloss`, `ne`, `rows`, `constant_logloss` : as in `ClickMetrics`; the constant
            prediction is the shares of the classes.

            `accuracy` : share of rows where the true class has the highest logit.
        """
        weight = float(self._counts.sum())
        constant = entropy(self._counts / weight) if weight else None
        logloss = ratio(self._loss, weight)
        return {
            "logloss": logloss,
            "ne": ratio(logloss, constant),
            "accuracy": ratio(self._right, weight),
            "rows": self._rows,
            "constant_logloss": constant,
        }
