# SPDX-License-Identifier: Apache-2.0
"""`Quantiles`: a label that is any number; predictions are quantiles of its distribution."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from sparsetrain.labels.label import NUMBER, Label
from sparsetrain.metrics.means import MeanMetrics
from sparsetrain.metrics.scores import Scores


class PinballMetrics(MeanMetrics):
    """Mean pinball loss of predicted quantiles, computed batch by batch.

    Parameters
    ----------
    levels : sequence of float
        Q increasing numbers between 0 and 1.

    Examples
    --------
    >>> metrics = PinballMetrics([0.1, 0.9])
    >>> metrics.update(np.array([[0.0, 2.0], [0.0, 2.0]]), np.array([1.0, 3.0]))
    >>> metrics.result()["coverage"]
    0.5
    """

    SCORES = ("pinball", "coverage", "rows", "mean_label")

    def __init__(self, levels: tuple[float, ...]) -> None:
        super().__init__(len(levels))
        self._levels = np.asarray(levels)

    def _of_rows(self, quantiles: np.ndarray, labels: np.ndarray) -> dict[str, np.ndarray]:
        found = quantiles.reshape(len(labels), -1)
        errors = labels[:, None] - found
        losses = np.maximum(self._levels * errors, (self._levels - 1) * errors)
        inside = (found[:, 0] <= labels) & (labels <= found[:, -1])
        return {"pinball": losses.mean(axis=1), "coverage": inside, "label": labels}

    def result(self) -> Scores:
        """Return the scores of all rows so far.

        Returns
        -------
        dict
            `pinball` : mean over rows and levels q of ``max(q e, (q - 1) e)``, where e is the
            label minus the predicted quantile.
            `coverage` : share of rows with a label between the lowest and the highest quantile; for
            levels from 0.1 to 0.9 it should be 0.8. None for a single level.
            `rows`, `mean_label` : number of rows, and the mean of their labels.

            Without rows, all but `rows` are None.
        """
        found = self._means()
        return {
            "pinball": found.get("pinball"),
            "coverage": found.get("coverage") if len(self._levels) > 1 else None,
            "rows": self._rows,
            "mean_label": found.get("label"),
        }


@dataclass(frozen=True, init=False)
class Quantiles(Label):
    """Any finite number; predictions are quantiles, and the loss is the pinball loss.

    Parameters
    ----------
    *levels : float
        Increasing, each above 0 and below 1.

    Notes
    -----
    The plain kind is a text such as ``"quantiles:0.1,0.5,0.9"``. Quantiles are learnt independently
    (Koenker and Bassett 1978, https://doi.org/10.2307/1913643), so the quantiles of a row may
    cross.
    """

    levels: tuple[float, ...]

    word = "quantiles"
    wanted = NUMBER
    watched = "pinball"
    lower = ("pinball",)
    scales = True
    scores = PinballMetrics

    def __init__(self, *levels: float) -> None:
        if not levels or not all(0 < level < 1 for level in levels):
            raise ValueError("levels must be between 0 and 1")
        if any(low >= high for low, high in pairwise(levels)):
            raise ValueError("levels must increase")
        object.__setattr__(self, "levels", tuple(map(float, levels)))

    @classmethod
    def parse(cls, arguments: str) -> Quantiles:
        """Read the levels, separated by commas."""
        return cls(*map(float, arguments.split(",")))

    @property
    def kind(self) -> str:
        """``quantiles:LEVEL,LEVEL``."""
        return f"{self.word}:{','.join(map(str, self.levels))}"

    def loss(self, op: Any, logits: Any, labels: Any) -> Any:
        """Return the mean over levels q of ``max(q e, (q - 1) e)``, where ``e = y - z``."""
        errors = labels - logits  # (B, Q)
        over = op.constant([self.levels])
        under = op.constant([[level - 1 for level in self.levels]])
        each = op.maximum(errors * over, errors * under)
        return op.sum(each, axis=1, keepdims=True) * (1 / len(self.levels))

    def metrics(self) -> PinballMetrics:
        """Return metrics without any rows."""
        return PinballMetrics(self.levels)

    @property
    def suffixes(self) -> tuple[str, ...]:
        """``_LEVEL``."""
        return tuple(f"_{level}" for level in self.levels)
