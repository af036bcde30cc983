# SPDX-License-Identifier: Apache-2.0
"""`ClickMetrics`: AUC, logloss, entropy, calibration and accuracy of any number of clicks.

The AUC comes from two histograms (clicks, others) over 2^20 bins of the logit. A bin holds the
float32 numbers that share their top 20 bits, so bins are narrow where floats are dense and no range
is assumed. Pairs of rows in different bins are counted exactly; pairs inside a bin count half, and
`auc_bound` says how much that can be wrong. A row costs about 20 ns and the state 24 MB, whatever
the number of rows; sorting would need them all.
"""

import numpy as np

from sparsetrain.errors import ConfigError, DataError, NumericalError
from sparsetrain.metrics.scores import Scores, entropy, ratio

_LOW_BITS = 12
_BINS = 1 << (32 - _LOW_BITS)


class ClickMetrics:
    """Scores that are fed batch by batch, and can be merged across parts of the data.

    The same batches in the same order give the same bits. Counts merge exactly; the sums of losses
    and of predictions are float64, so another order may differ in their last digits.

    Examples
    --------
    >>> metrics = ClickMetrics()
    >>> metrics.update(np.array([2.0, -1.0, 0.5]), np.array([1, 0, 1]))
    >>> metrics.result()["auc"]
    1.0
    """

    # Names of what `result` gives, known without memory for the histograms.
    SCORES = (
        *("auc", "auc_bound", "logloss", "ne", "calibration", "accuracy"),
        *("rows", "constant_logloss", "positive_rate"),
    )

    def __init__(self) -> None:
        self._counts = np.zeros((2, _BINS), np.int64)  # others, clicks
        self._lowest = np.full(_BINS, 0xFFFFFFFF, np.uint32)  # keys seen in each bin
        self._highest = np.zeros(_BINS, np.uint32)
        self._loss = self._prediction = 0.0
        self._right = 0

    def update(self, logits: np.ndarray, labels: np.ndarray) -> None:
        """Add rows.

        Parameters
        ----------
        logits : ndarray (B,) of a float type
            Log-odds of a click; the AUC sees them as float32.
        labels : ndarray (B,) of bool, integers or floats
            1 for a click, 0 for none.

        Raises
        ------
        ConfigError
            If the shapes do not fit.
        DataError
            If a label is neither 0 nor 1.
        NumericalError
            If a logit is NaN. Rows are counted from the first that was added.
        """
        z, clicks = self._checked(np.asarray(logits), np.asarray(labels))
        keys = _order_keys(z)
        bins = (keys >> _LOW_BITS).astype(np.int64)
        np.add.at(self._counts.reshape(-1), bins + clicks * _BINS, 1)
        np.minimum.at(self._lowest, bins, keys)
        np.maximum.at(self._highest, bins, keys)
        loss, prediction = _loss_and_prediction(z, clicks)
        self._loss += loss
        self._prediction += prediction
        self._right += int(np.count_nonzero((z > 0) == clicks))

    def merge(self, other: "ClickMetrics") -> None:
        """Add the rows that `other` has seen; `other` stays as it is."""
        self._counts += other._counts
        np.minimum(self._lowest, other._lowest, out=self._lowest)
        np.maximum(self._highest, other._highest, out=self._highest)
        self._loss += other._loss
        self._prediction += other._prediction
        self._right += other._right

    def result(self) -> Scores:
        """Return the scores of all rows so far.

        Returns
        -------
        dict
            `auc` : probability that a click is scored above another row, ties counted half.

            `auc_bound` : the exact AUC of the float32 logits is within this of `auc`. Ties that
            are known to be exact (a bin that met one value only) do not count.

            `logloss` : mean cross-entropy, in nats; infinite if an infinite logit was wrong.

            `ne` : normalised entropy, `logloss / constant_logloss`; below 1 is better than a
            constant.

            `calibration` : mean prediction divided by the click rate; 1 is best.

            `accuracy` : share of rows that are clicks just where the probability is above 0.5.

            `rows` : how many rows.

            `constant_logloss`, `positive_rate` : logloss of always predicting the click rate of
            these rows, and that rate.

            A score that does not exist is None, as JSON has no NaN: all but `rows` without rows;
            `auc`, `auc_bound` and `ne` with one class only; `calibration` without a click.
        """
        others, clicks = (int(count) for count in self._counts.sum(axis=1))
        rows = others + clicks
        rate = ratio(clicks, rows)
        logloss, constant = (
            ratio(self._loss, rows),
            entropy([rate, 1.0 - rate]) if rate is not None else None,
        )
        return {
            "auc": self._auc(others, clicks),
            "auc_bound": self._auc_bound(others, clicks),
            "logloss": logloss,
            "ne": ratio(logloss, constant),
            "calibration": ratio(self._prediction, clicks),
            "accuracy": ratio(self._right, rows),
            "rows": rows,
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
        return int(self._counts.sum()) + offset

    def _auc(self, others: int, clicks: int) -> float | None:
        # Float64 rather than int64: the number of pairs overflows at four billion rows.
        # Most bins met no row, and add nothing.
        met = np.flatnonzero(self._lowest <= self._highest)
        negatives, positives = self._counts[:, met].astype(np.float64)
        below = np.cumsum(negatives) - 0.5 * negatives
        return ratio(float((positives * below).sum()), others * clicks)

    def _auc_bound(self, others: int, clicks: int) -> float | None:
        unsure = self._lowest < self._highest
        negatives, positives = self._counts[:, unsure].astype(np.float64)
        return ratio(0.5 * float((positives * negatives).sum()), others * clicks)


def _order_keys(z: np.ndarray) -> np.ndarray:
    """Map float32 of `z` to uint32 with the same order, -0.0 and 0.0 to one key: (B,)."""
    with np.errstate(over="ignore"):
        bits = (z.astype(np.float32) + np.float32(0.0)).view(np.uint32)
    # Negative floats fall as their bits rise, so these are flipped whole, the others by the sign.
    return np.where(bits >> 31, ~bits, bits | np.uint32(0x80000000))


def _loss_and_prediction(z: np.ndarray, clicks: np.ndarray) -> tuple[float, float]:
    """Return the sums of the cross-entropies and of the probabilities, infinite logits allowed."""
    tail = np.exp(-np.abs(z))
    loss = np.log1p(tail) + np.maximum(np.where(clicks, -z, z), 0.0)
    prediction = np.where(z < 0.0, tail, 1.0) / (1.0 + tail)
    return float(loss.sum()), float(prediction.sum())
