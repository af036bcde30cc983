# SPDX-License-Identifier: Apache-2.0
"""`Binary`: a label of 0 or 1, such as a click; its logit is the log-odds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from sparsetrain.labels.label import Label
from sparsetrain.metrics.clicks import ClickMetrics


@dataclass(frozen=True)
class Binary(Label):
    """0 or 1; the loss is the cross-entropy, the prediction the probability of 1."""

    word = "binary"
    wanted = "0 or 1"
    output = "probability"
    watched = "logloss"
    is_yes_or_no = is_exported = True
    scores = ClickMetrics

    def bad(self, values: np.ndarray) -> np.ndarray:
        """Return which numbers are neither 0 nor 1."""
        return (values != 0) & (values != 1)

    def loss(self, op: Any, logits: Any, labels: Any) -> Any:
        """Return ``log(1 + exp(z)) - z y``."""
        return op.binary_cross_entropy(logits, labels)

    def predict(self, logits: np.ndarray) -> np.ndarray:
        """Return ``1 / (1 + exp(-z))``, computed in float64."""
        with np.errstate(over="ignore"):  # exp of a large number is infinite; 1 / inf is 0
            return (1 / (1 + np.exp(-logits.astype(np.float64)))).astype(np.float32)
