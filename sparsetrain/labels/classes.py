# SPDX-License-Identifier: Apache-2.0
"""`Classes`: a label that is one of C classes, with a logit for each."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from sparsetrain.labels.label import Label
from sparsetrain.metrics.classes import ClassMetrics


@dataclass(frozen=True)
class Classes(Label):
    """One of the classes 0 to C - 1; the loss is the softmax cross-entropy.

    Logits are log-probabilities up to a constant for each row.

    Parameters
    ----------
    count : int
        Number of classes C, 2 or more.
    """

    count: int

    word = "classes"
    output = "probability"
    watched = "logloss"
    scores = ClassMetrics

    def __post_init__(self) -> None:
        if self.count < 2:
            raise ValueError("there must be 2 or more classes")

    @classmethod
    def parse(cls, arguments: str) -> Classes:
        """Read the number of classes."""
        return cls(int(arguments))

    @property
    def kind(self) -> int:
        """The number of classes."""
        return self.count

    @property
    def wanted(self) -> str:
        """The values of a label."""
        return f"a class below {self.count}"

    def bad(self, values: np.ndarray) -> np.ndarray:
        """Return which numbers are not classes."""
        return ~((values >= 0) & (values < self.count) & (values == np.floor(values)))

    def loss(self, op: Any, logits: Any, labels: Any) -> Any:
        """Return ``log sum_c exp(z_c) - z_y``."""
        rows = logits.shape[0]
        classes = op.reshape(op.astype(labels, "int64"), (rows,))
        return op.reshape(op.softmax_cross_entropy(logits, classes), (rows, 1))

    def predict(self, logits: np.ndarray) -> np.ndarray:
        """Return the probabilities of the classes, computed in float64."""
        wide = logits.astype(np.float64)
        powers = np.exp(wide - wide.max(axis=1, keepdims=True, initial=-np.inf))
        return (powers / powers.sum(axis=1, keepdims=True)).astype(np.float32)

    def metrics(self) -> ClassMetrics:
        """Return metrics without any rows."""
        return ClassMetrics(self.count)

    def __str__(self) -> str:
        return f"{self.count} classes"

    @property
    def suffixes(self) -> tuple[str, ...]:
        """``_CLASS``."""
        return tuple(f"_{number}" for number in range(self.count))
