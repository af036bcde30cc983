# SPDX-License-Identifier: Apache-2.0
"""Scores by a model with labels: metrics of labelled rows, and predictions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from sparsetrain import runtime
from sparsetrain.data import Batch, Dataset
from sparsetrain.errors import DataError, NumericalError
from sparsetrain.labels import LabelMetrics
from sparsetrain.tables.state_dict import describe_nonfinite
from sparsetrain.tables.table import FOREVER
from sparsetrain.training.equal_rows import with_row_numbers


def evaluate(
    predictor: Any,
    dataset: Dataset,
    batch_size: int,
    group_by: str | None = None,
    stop: Callable[[], bool] | None = None,
    by_weights: bool = False,
) -> dict[str, Any] | None:
    """Return metrics of labelled rows, or None if `stop` returned True between two batches.

    With `by_weights`, metrics weight each row by its weight in the batch.
    """
    model = predictor.model

    def labelled(batch: Batch) -> Batch:
        if batch.labels is None:
            raise DataError("evaluate needs labels in the data")
        if by_weights and batch.weights is None:
            raise DataError(
                "by_weights: these rows have no weights: set their column with "
                "Encoder.fit(..., weights=NAME), and include it in the data"
            )
        model.all_labels.check(batch.labels)
        return batch

    metrics = LabelMetrics(model.all_labels, group_by is not None, model.label_weights)
    scored = predictor._scored(map(labelled, dataset.batches(batch_size)))
    for number, (batch, logits) in enumerate(scored):
        if number and stop is not None and stop():
            return None
        groups = None if group_by is None else model.read(group_by, batch)
        metrics.update(logits, batch.labels, groups, batch.weights if by_weights else None)
    return metrics.result()


def predict(predictor: Any, dataset: Dataset, batch_size: int) -> np.ndarray:
    """Predict all rows, batch by batch, since float64 arrays of all rows would be large."""
    model = predictor.model
    scored = predictor._scored(dataset.batches(batch_size))
    found = [model.all_labels.predictions(logits) for _, logits in scored]
    none = model.all_labels.predictions(np.empty((0, model.num_logits), np.float32))
    return np.concatenate([*found, none])


def predict_few(predictor: Any, batch: Batch) -> np.ndarray:
    """Predict the rows of one batch."""
    ((_, logits),) = predictor._scored([batch])
    found: np.ndarray = predictor.model.all_labels.predictions(logits)
    return found


def score(predictor: Any, batch: Batch) -> np.ndarray:
    """Compute the logits of each row and label, (B, T) float32."""
    inputs = logits_inputs(predictor, batch)
    with predictor._lock:
        weights = predictor._weights(predictor.model.rows_read(inputs))
        logits = runtime.as_numpy(predictor._logits(weights, inputs))
    return finite(predictor, logits)


def logits_inputs(predictor: Any, batch: Batch) -> dict[str, Any]:
    """Return the arguments of the logits program, except parameters."""
    inputs: dict[str, Any] = predictor.model.inputs(batch)
    if predictor._repeated:
        inputs = with_row_numbers(inputs, predictor._repeated, len(batch))
    return inputs


def finite(predictor: Any, logits: np.ndarray) -> np.ndarray:
    """Return logits if all are finite; else raise an error that names a parameter that is not."""
    is_finite = np.isfinite(logits)
    if not is_finite.all():
        found = describe_nonfinite(predictor.params.views(missed=FOREVER))
        raise NumericalError(
            f"the score of a row is {logits[~is_finite][0]}: "
            f"{found or 'its inputs or weights are too large'}"
        )
    return logits
