# SPDX-License-Identifier: Apache-2.0
"""Scores of predictions over any number of rows: of clicks, of real values, of several labels.

Of clicks there are AUC, logloss, entropy and calibration.

The AUC comes from two histograms (clicks, others) over 2^20 bins of the logit. A bin holds the
float32 numbers that share their top 20 bits, so bins are narrow where floats are dense and no range
is assumed. Pairs of rows in different bins are counted exactly; pairs inside a bin count half, and
`auc_bound` says how much that can be wrong. A row costs about 20 ns and the state 24 MB, whatever
the number of rows; sorting would need them all.
"""

from collections.abc import Mapping

import numpy as np

from sparsetrain.errors import ConfigError, DataError, NumericalError

__all__ = ["ClickMetrics", "LabelMetrics", "RegressionMetrics"]
_LOW_BITS = 12
_BINS = 1 << (32 - _LOW_BITS)


def __dir__() -> list[str]:
    return __all__


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
        *("auc", "auc_bound", "logloss", "ne", "calibration"),
        *("rows", "constant_logloss", "positive_rate"),
    )

    def __init__(self) -> None:
        self._counts = np.zeros((2, _BINS), np.int64)  # others, clicks
        self._lowest = np.full(_BINS, 0xFFFFFFFF, np.uint32)  # keys seen in each bin
        self._highest = np.zeros(_BINS, np.uint32)
        self._loss = self._prediction = 0.0

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

    def merge(self, other: "ClickMetrics") -> None:
        """Add the rows that `other` has seen; `other` stays as it is."""
        self._counts += other._counts
        np.minimum(self._lowest, other._lowest, out=self._lowest)
        np.maximum(self._highest, other._highest, out=self._highest)
        self._loss += other._loss
        self._prediction += other._prediction

    def result(self) -> dict[str, float | int | None]:
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

            `rows` : how many rows.

            `constant_logloss`, `positive_rate` : logloss of always predicting the click rate of
            these rows, and that rate.

            A score that does not exist is None, as JSON has no NaN: all but `rows` without rows;
            `auc`, `auc_bound` and `ne` with one class only; `calibration` without a click.
        """
        others, clicks = (int(count) for count in self._counts.sum(axis=1))
        rows = others + clicks
        rate = _ratio(clicks, rows)
        logloss, constant = _ratio(self._loss, rows), _entropy(rate)
        return {
            "auc": self._auc(others, clicks),
            "auc_bound": self._auc_bound(others, clicks),
            "logloss": logloss,
            "ne": _ratio(logloss, constant),
            "calibration": _ratio(self._prediction, clicks),
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
        return _ratio(float((positives * below).sum()), others * clicks)

    def _auc_bound(self, others: int, clicks: int) -> float | None:
        unsure = self._lowest < self._highest
        negatives, positives = self._counts[:, unsure].astype(np.float64)
        return _ratio(0.5 * float((positives * negatives).sum()), others * clicks)


class RegressionMetrics:
    """Errors of real predictions that are fed batch by batch, and can be merged.

    Sums are float64: the same batches in the same order give the same bits.

    Examples
    --------
    >>> metrics = RegressionMetrics()
    >>> metrics.update(np.array([2.5, 4.0]), np.array([3.0, 4.0]))
    >>> metrics.result()["mae"]
    0.25
    """

    SCORES = ("rmse", "mae", "rows", "constant_rmse", "mean_label", "mean_prediction")

    def __init__(self) -> None:
        self._rows = 0
        self._squared = self._absolute = 0.0  # sums of errors
        self._label = self._prediction = 0.0  # means
        self._spread = 0.0  # sum of squared distances of labels from their mean

    def update(self, predictions: np.ndarray, labels: np.ndarray) -> None:
        """Add rows.

        Parameters
        ----------
        predictions, labels : ndarray (B,) of a float type

        Raises
        ------
        ConfigError
            If the shapes do not fit.
        DataError, NumericalError
            If a label or a prediction is not finite. Rows are counted from the first that was
            added.
        """
        found, wanted = (np.asarray(array) for array in (predictions, labels))
        if found.ndim != 1 or found.shape != wanted.shape:
            raise ConfigError(
                f"predictions {found.shape} and labels {wanted.shape} must be two vectors of one "
                "length"
            )
        found, wanted = found.astype(np.float64), wanted.astype(np.float64)
        faults = {"label": (wanted, DataError), "prediction": (found, NumericalError)}
        for name, (array, error) in faults.items():
            if not np.isfinite(array).all():
                row = int(np.argmin(np.isfinite(array)))
                raise error(f"row {self._rows + row}: the {name} is {array[row]}, not finite")
        if not len(found):
            return
        distance = found - wanted
        part = RegressionMetrics()
        part._rows = len(found)
        part._squared, part._absolute = float(distance @ distance), float(np.abs(distance).sum())
        part._label, part._prediction = float(wanted.mean()), float(found.mean())
        part._spread = float(np.square(wanted - part._label).sum())
        self.merge(part)

    def merge(self, other: "RegressionMetrics") -> None:
        """Add the rows that `other` has seen; `other` stays as it is."""
        rows = self._rows + other._rows
        if not rows:
            return
        share, apart = other._rows / rows, other._label - self._label
        self._spread += other._spread + apart * apart * self._rows * share
        self._label += apart * share
        self._prediction += (other._prediction - self._prediction) * share
        self._squared += other._squared
        self._absolute += other._absolute
        self._rows = rows

    def result(self) -> dict[str, float | int | None]:
        """Return the scores of all rows so far.

        Returns
        -------
        dict
            `rmse`, `mae` : root of the mean squared error, and mean absolute error.

            `rows` : how many rows.

            `constant_rmse` : that of always predicting the mean label of these rows.

            `mean_label`, `mean_prediction` : means.

            Without rows all but `rows` are None.
        """
        squared, spread = _ratio(self._squared, self._rows), _ratio(self._spread, self._rows)
        return {
            "rmse": None if squared is None else float(np.sqrt(squared)),
            "mae": _ratio(self._absolute, self._rows),
            "rows": self._rows,
            "constant_rmse": None if spread is None else float(np.sqrt(spread)),
            "mean_label": self._label if self._rows else None,
            "mean_prediction": self._prediction if self._rows else None,
        }


# Kind of a label -> its scores.
_OF_KIND: dict[str, type[ClickMetrics | RegressionMetrics]] = {
    "binary": ClickMetrics,
    "real": RegressionMetrics,
}


class LabelMetrics:
    """Scores of each label of a model, fed batch by batch.

    Parameters
    ----------
    kinds : mapping from str to {"binary", "real"}
        Name and kind of each of the T labels.

    Examples
    --------
    >>> metrics = LabelMetrics({"click": "binary", "stars": "real"})
    >>> metrics.update(np.array([[2.0, 3.5], [-1.0, 1.0]]), np.array([[1, 4.0], [0, np.nan]]))
    >>> metrics.result()["stars.rmse"]
    0.5
    """

    def __init__(self, kinds: Mapping[str, str]) -> None:
        self._each: dict[str, ClickMetrics | RegressionMetrics] = {
            name: _OF_KIND[kind]() for name, kind in kinds.items()
        }
        self._rows = 0

    def update(self, logits: np.ndarray, labels: np.ndarray) -> None:
        """Add rows.

        Parameters
        ----------
        logits : ndarray (B, T) of a float type
            Log-odds of binary labels, predictions of real ones.
        labels : ndarray (B, T), or (B,) of a single label
            NaN where one of several is missing: the row does not count for that one.

        Raises
        ------
        ConfigError, DataError, NumericalError
            As `ClickMetrics.update` and `RegressionMetrics.update`.
        """
        columns = np.atleast_2d(labels.T)
        for metrics, scores, wanted in zip(self._each.values(), logits.T, columns, strict=True):
            known = slice(None) if len(columns) == 1 else ~np.isnan(wanted)
            metrics.update(scores[known], wanted[known])
        self._rows += len(logits)

    def result(self) -> dict[str, float | int | None]:
        """Return the scores of all rows so far.

        Returns
        -------
        dict
            Those of the only label; or of several ``NAME.SCORE`` for each, `rows`, and `loss`: the
            sum over the labels of logloss or mean squared error, where a missing label counts as a
            row without an error.
        """
        found = {name: metrics.result() for name, metrics in self._each.items()}
        if len(found) == 1:
            return next(iter(found.values()))
        joined = {
            f"{name}.{key}": value for name, own in found.items() for key, value in own.items()
        }
        total = sum(_mean_loss(own) * (own["rows"] or 0) for own in found.values())
        return {**joined, "loss": _ratio(total, self._rows), "rows": self._rows}


def score_names(kinds: Mapping[str, str]) -> list[str]:
    """Return the names of the scores of labels of these kinds, in the order of `LabelMetrics`."""
    own = {name: _OF_KIND[kind].SCORES for name, kind in kinds.items()}
    if len(own) == 1:
        return [score for scores in own.values() for score in scores]
    return [
        *(f"{name}.{score}" for name, scores in own.items() for score in scores),
        "loss",
        "rows",
    ]


def _mean_loss(scores: Mapping[str, float | int | None]) -> float:
    if "logloss" in scores:
        return scores["logloss"] or 0.0
    return (scores["rmse"] or 0.0) ** 2


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


def _entropy(rate: float | None) -> float | None:
    if rate is None:
        return None
    terms = [p * np.log(p) for p in (rate, 1.0 - rate) if p > 0.0]
    return -float(sum(terms)) + 0.0


def _ratio(total: float | None, count: float | None) -> float | None:
    return total / count if total is not None and count else None
