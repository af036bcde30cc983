# SPDX-License-Identifier: Apache-2.0
"""`LabelMetrics`: scores of all labels of a model, by their kinds."""

from collections.abc import Mapping
from itertools import accumulate

import numpy as np

from sparsetrain.metrics.classes import ClassMetrics
from sparsetrain.metrics.clicks import ClickMetrics
from sparsetrain.metrics.grouped import GroupedAUC
from sparsetrain.metrics.ranking import RankingMetrics
from sparsetrain.metrics.regression import RegressionMetrics
from sparsetrain.metrics.scores import Scores, ratio

Metrics = ClickMetrics | RegressionMetrics | ClassMetrics
# Word for the kind of a label -> its scores; a number is that of classes.
_OF_KIND: dict[str | int, type[ClickMetrics | RegressionMetrics]] = {
    "binary": ClickMetrics,
    "real": RegressionMetrics,
}


class LabelMetrics:
    """Scores of each label of a model, fed batch by batch.

    Parameters
    ----------
    kinds : mapping from str to {"binary", "real"} or int
        Name and kind of each of the T labels; a number is that of classes.
    grouped : bool
        Whether rows come with groups, so that binary labels have the scores of `GroupedAUC` too.
    weights : mapping from str to float, optional
        Factors of the losses of labels in their sum; by default 1.

    Examples
    --------
    >>> metrics = LabelMetrics({"click": "binary", "stars": "real"})
    >>> metrics.update(np.array([[2.0, 3.5], [-1.0, 1.0]]), np.array([[1, 4.0], [0, np.nan]]))
    >>> metrics.result()["stars.rmse"]
    0.5
    """

    def __init__(
        self,
        kinds: Mapping[str, str | int],
        grouped: bool = False,
        weights: Mapping[str, float] | None = None,
    ) -> None:
        self._each: dict[str, Metrics] = {
            name: ClassMetrics(kind) if isinstance(kind, int) else _OF_KIND[kind]()
            for name, kind in kinds.items()
        }
        self._weights = weights or {}
        # Columns of the logits: one for each class, a single one of other labels.
        ends = [0, *accumulate(k if isinstance(k, int) else 1 for k in kinds.values())]
        self._columns = [
            slice(*pair) if isinstance(kind, int) else pair[0]
            for kind, pair in zip(kinds.values(), zip(ends, ends[1:], strict=False), strict=True)
        ]
        self._grouped = {
            name: GroupedAUC() for name, kind in kinds.items() if grouped and kind == "binary"
        }
        self._rows = 0

    def update(
        self, logits: np.ndarray, labels: np.ndarray, groups: np.ndarray | None = None
    ) -> None:
        """Add rows.

        Parameters
        ----------
        logits : ndarray (B, S) of a float type
            Log-odds of binary labels, predictions of real ones, C columns of C classes.
        labels : ndarray (B, T), or (B,) of a single label
            NaN where one of several is missing: the row does not count for that one.
        groups : ndarray (B,) of integers, optional
            Where `grouped`, which group a row belongs to.

        Raises
        ------
        ConfigError, DataError, NumericalError
            As `update` of the labels' scores; no label has got rows then.
        """
        columns = np.atleast_2d(labels.T)
        several = len(columns) > 1
        rows = {
            name: (
                known := ~np.isnan(wanted) if several else slice(None),
                logits[known, own],
                wanted[known],
            )
            for name, own, wanted in zip(self._each, self._columns, columns, strict=True)
        }
        for name, (_, scores, wanted) in rows.items() if several else ():
            self._each[name]._checked(scores, wanted)
        for name, (known, scores, wanted) in rows.items():
            self._each[name].update(scores, wanted)
            if groups is not None and name in self._grouped:
                self._grouped[name].update(scores, wanted, groups[known])
        self._rows += len(logits)

    def result(self) -> Scores:
        """Return the scores of all rows so far.

        Returns
        -------
        dict
            Those of the only label; or of several ``NAME.SCORE`` for each, `rows`, and `loss`: the
            weighted sum over the labels of logloss or mean squared error, where a missing label
            counts as a row without an error.
        """
        found = {name: metrics.result() for name, metrics in self._each.items()}
        for name, of_groups in self._grouped.items():
            found[name] |= of_groups.result()
        if len(found) == 1:
            return next(iter(found.values()))
        joined = {
            f"{name}.{key}": value for name, own in found.items() for key, value in own.items()
        }
        total = sum(
            self._weights.get(name, 1.0) * _mean_loss(own) * (own["rows"] or 0)
            for name, own in found.items()
        )
        return {**joined, "loss": ratio(total, self._rows), "rows": self._rows}


def score_names(kinds: Mapping[str, str | int], grouped: bool = False) -> list[str]:
    """Return the names of the scores of labels of these kinds, in the order of `LabelMetrics`.

    Without labels they are those of a ranking.
    """
    if not kinds:
        return [*RankingMetrics().result()]
    own = {
        name: (
            *_OF_KIND.get(kind, ClassMetrics).SCORES,
            *(GroupedAUC.SCORES if grouped and kind == "binary" else ()),
        )
        for name, kind in kinds.items()
    }
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
