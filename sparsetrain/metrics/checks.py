# SPDX-License-Identifier: Apache-2.0
"""Checks of metrics' inputs: finite numbers, and weights of rows."""

from __future__ import annotations

import numpy as np

from sparsetrain.errors import ConfigError, DataError, NumericalError


def check_finite(
    predictions: np.ndarray, labels: np.ndarray, before: int
) -> tuple[np.ndarray, np.ndarray]:
    """Return both as float64; refuse values that are not finite, counting rows from `before`."""
    wide = predictions.astype(np.float64), labels.astype(np.float64)
    for name, array, error in (
        ("label", wide[1], DataError),
        ("prediction", wide[0], NumericalError),
    ):
        finite = np.isfinite(array)
        if not finite.all():
            at = tuple(int(place) for place in np.argwhere(~finite)[0])
            raise error(f"row {before + at[0]}: the {name} is {array[at]}, not finite")
    return wide


def check_weights(weights: np.ndarray | None, rows: int, before: int) -> np.ndarray | None:
    """Return the weights of rows as float64, or None; see `check_finite`."""
    if weights is None:
        return None
    wide = np.asarray(weights, np.float64)
    if wide.shape != (rows,):
        raise ConfigError(f"weights {wide.shape} must be ({rows},), one for each row")
    wrong = ~((wide >= 0) & np.isfinite(wide))
    if wrong.any():
        row = int(wrong.argmax())
        raise DataError(f"row {before + row}: the weight is {wide[row]}; it must be 0 or more")
    return wide


def total(values: np.ndarray, weights: np.ndarray | None) -> float:
    """Return the weighted sum of values (B,) of rows; rows of weight 0 do not count."""
    if weights is None:
        return float(values.sum())
    return float(values[weights > 0] @ weights[weights > 0])  # avoids 0 * inf
