# SPDX-License-Identifier: Apache-2.0
"""`Count`: a label that is a count, such as visits; its logit is the logarithm of the mean."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from sparsetrain.labels.label import Label, not_finite
from sparsetrain.metrics.means import MeanMetrics
from sparsetrain.metrics.scores import Scores


class DevianceMetrics(MeanMetrics):
    """Mean deviance of Poisson's distribution, computed batch by batch.

    Examples
    --------
    >>> metrics = DevianceMetrics()
    >>> metrics.update(np.log([2.0, 1.0]), np.array([2.0, 0.0]))
    >>> metrics.result()["deviance"]
    1.0
    """

    SCORES = ("deviance", "rows", "constant_deviance", "mean_label", "mean_prediction")

    def _of_rows(self, logits: np.ndarray, labels: np.ndarray) -> dict[str, np.ndarray]:
        means = np.exp(logits)
        entropies = labels * np.log(np.where(labels > 0, labels, 1.0))
        deviances = 2 * (entropies - labels * logits - labels + means)
        return {"deviance": deviances, "entropy": entropies, "label": labels, "mean": means}

    def result(self) -> Scores:
        """Return the scores of all rows so far.

        Returns
        -------
        dict
            `deviance` : mean of ``2 (y log(y / m) - y + m)`` of labels y and predicted means m.

            `rows` : number of rows.

            `constant_deviance` : deviance of always predicting the mean label of these rows.

            `mean_label`, `mean_prediction` : means.

            Without rows, all but `rows` are None.
        """
        found = self._means()
        label, constant = found.get("label"), None
        if label is not None:
            constant = 2 * (found["entropy"] - (label * np.log(label) if label else 0.0))
        return {
            "deviance": found.get("deviance"),
            "rows": self._rows,
            "constant_deviance": None if constant is None else float(constant),
            "mean_label": label,
            "mean_prediction": found.get("mean"),
        }


@dataclass(frozen=True)
class Count(Label):
    """A number of 0 or more, modelled by Poisson's distribution; the prediction is its mean.

    The loss is half the deviance, and so 0 if the mean equals the label.
    """

    word = "count"
    wanted = "0 or more"
    watched = "deviance"
    lower = ("deviance",)
    scores = DevianceMetrics

    def bad(self, values: np.ndarray) -> np.ndarray:
        """Return which numbers are negative, or not finite in float32."""
        return ~(values >= 0) | not_finite(values)

    def loss(self, op: Any, logits: Any, labels: Any) -> Any:
        """Return ``exp(z) - y z + y log y - y``."""
        entropies = labels * op.log(op.maximum(labels, op.constant([[_LEAST]])))
        return op.exp(logits) - labels * logits + (entropies - labels)

    def predict(self, logits: np.ndarray) -> np.ndarray:
        """Return ``exp(z)``, computed in float64."""
        with np.errstate(over="ignore"):
            return np.exp(logits.astype(np.float64)).astype(np.float32)

    def mean_loss(self, scores: Any) -> float:
        """Return half the deviance."""
        return (scores["deviance"] or 0.0) / 2


_LEAST = float(np.finfo(np.float32).tiny)  # avoids log 0, so that 0 log 0 is 0
