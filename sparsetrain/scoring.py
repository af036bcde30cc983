# SPDX-License-Identifier: Apache-2.0
"""What a model says about batches: scores against labels, and click probabilities."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from sparsetrain.data import Batch
from sparsetrain.errors import DataError
from sparsetrain.metrics import ClickMetrics

Logits = Callable[[Batch], np.ndarray]  # of each row of a batch, (rows,) float32


def scores(
    logits: Logits, batches: Iterable[Batch], stop: Callable[[], bool] | None
) -> dict[str, Any] | None:
    """Return the scores, or None if `stop`, asked between two batches, ended it."""
    metrics = ClickMetrics()
    for number, batch in enumerate(batches):
        if number and stop is not None and stop():
            return None
        if batch.labels is None:
            raise DataError("data to evaluate on needs labels")
        metrics.update(logits(batch), batch.labels)
    return metrics.result()


def probabilities(logits: Logits, batches: Iterable[Batch]) -> np.ndarray:
    """Click probabilities (rows,) float32, in the order of the rows."""
    found = [logits(batch) for batch in batches]
    joined = np.concatenate(found) if found else np.empty(0, np.float32)
    with np.errstate(over="ignore"):  # exp of a large number is infinite, its inverse 0
        return (1 / (1 + np.exp(-joined.astype(np.float64)))).astype(np.float32)
