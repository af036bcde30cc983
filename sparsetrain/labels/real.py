# SPDX-License-Identifier: Apache-2.0
"""`Real`: a label that is any number, such as a rating; its logit is the prediction."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sparsetrain.labels.label import NUMBER, Label
from sparsetrain.metrics.regression import RegressionMetrics


@dataclass(frozen=True)
class Real(Label):
    """Any finite number; the loss is the squared error."""

    word = "real"
    wanted = NUMBER
    watched = "rmse"
    scales = True
    is_exported = True
    scores = RegressionMetrics

    def loss(self, op: Any, logits: Any, labels: Any) -> Any:
        """Return ``(z - y)**2``."""
        error = logits - labels
        return error * error

    def mean_loss(self, scores: Mapping[str, float | int | None]) -> float:
        """Return the mean squared error."""
        return (scores["rmse"] or 0.0) ** 2
