# SPDX-License-Identifier: Apache-2.0
"""`LabelMetrics`: scores of all labels of a model."""

import operator
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from sparsetrain.labels.label import LABELS, Kind, Label, Labels, Metrics
from sparsetrain.metrics.checks import check_weights
from sparsetrain.metrics.grouped import GroupedAUC
from sparsetrain.metrics.ranking import RankingMetrics
from sparsetrain.metrics.scores import GAINS, Scores, base_name, ratio


class LabelMetrics:
    """Scores of each label of a model, computed batch by batch.

    Parameters
    ----------
    labels : Labels, or mapping from str to str or int
        Name and kind of each of the T labels.
    grouped : bool
        Whether rows have groups, so that binary labels also get the scores of `GroupedAUC`.
    weights : mapping from str to float, optional
        Factor of each label's loss in the sum of losses; by default 1.

    Examples
    --------
    >>> metrics = LabelMetrics({"click": "binary", "stars": "real"})
    >>> labels = np.array([[1, 4.0], [0, np.nan]])
    >>> metrics.update(np.array([[2.0, 3.5], [-1.0, 1.0]]), labels)
    >>> metrics.result()["stars.rmse"]
    0.5
    """

    def __init__(
        self,
        labels: Labels | Mapping[str, Kind],
        grouped: bool = False,
        weights: Mapping[str, float] | None = None,
    ) -> None:
        self._labels = labels if isinstance(labels, Labels) else Labels(labels)
        self._each: dict[str, Metrics] = {n: own.metrics() for n, own in self._labels.items()}
        self._weights = weights or {}
        self._grouped = {
            name: GroupedAUC()
            for name, label in self._labels.items()
            if grouped and label.is_yes_or_no
        }
        self._known = dict.fromkeys(self._each, 0.0)  # total weight of rows that have the label
        self._weight, self._rows = 0.0, 0

    def update(
        self,
        logits: np.ndarray,
        labels: np.ndarray,
        groups: np.ndarray | None = None,
        weights: np.ndarray | None = None,
    ) -> None:
        """Add rows.

        Parameters
        ----------
        logits : ndarray (B, S) of a float type
            The columns of all labels side by side, for example one column of log-odds.
        labels : ndarray (B, T), or (B,) for a single label
            With several labels, NaN is a missing label: the row does not count for that label.
        groups : ndarray (B,) of integers, optional
            If `grouped`, the group of each row.
        weights : ndarray (B,) of numbers of 0 or more, optional
            Weight of each row, except in `rows` and the scores of groups; by default 1.

        Raises
        ------
        ConfigError, DataError, NumericalError
            As in `update` of the labels' metrics; no rows are added then.
        """
        columns = np.atleast_2d(labels.T)
        several, weights = len(columns) > 1, check_weights(weights, len(logits), self._rows)
        rows = {
            name: (
                known := ~np.isnan(wanted) if several else slice(None),
                logits[known, own if label.num_logits > 1 else own.start],
                wanted[known],
            )
            for (name, label), own, wanted in zip(
                self._labels.items(), self._labels.columns.values(), columns, strict=True
            )
        }
        for name, (_, scores, wanted) in rows.items() if several else ():
            self._each[name]._checked(scores, wanted)
        for name, (known, scores, wanted) in rows.items():
            factors = None if weights is None else weights[known]
            self._each[name].update(scores, wanted, factors)
            self._known[name] += len(wanted) if factors is None else factors.sum()
            if groups is not None and name in self._grouped:
                self._grouped[name].update(scores, wanted, groups[known])
        self._weight += len(logits) if weights is None else weights.sum()
        self._rows += len(logits)

    def result(self) -> Scores:
        """Return the scores of all rows so far.

        Returns
        -------
        dict
            The scores of a single label. With several labels, ``NAME.SCORE`` for each label's
            scores, `rows`, and `loss`: the weighted sum over labels of their mean losses, where a
            missing label counts as a row with loss 0.
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
            self._weights.get(name, 1.0) * self._labels[name].mean_loss(own) * self._known[name]
            for name, own in found.items()
        )
        return {**joined, "loss": ratio(total, self._weight), "rows": self._rows}


def gains() -> dict[str, Callable[[float], float]]:
    """Return, for each score of any kind, a function that increases with better values."""
    own = [score for label in LABELS.values() for score in label.lower]
    return GAINS | dict.fromkeys(own, operator.neg)


def watched_names() -> list[str]:
    """Return the names of all scores that can be monitored; scores of rankings end in ``@K``."""
    ranked = {base_name(name) for name in score_names(Labels({})) if "@" in name}
    names = sorted(gains(), key=ranked.__contains__)  # scores of rankings last
    return [f"{name}@K" if name in ranked else name for name in names]


def score_names(labels: Labels, grouped: bool = False, k: int | Sequence[int] = 10) -> list[str]:
    """Return the names of the labels' scores, in the order of `LabelMetrics`.

    Without labels, return the scores of rankings at `k`.
    """
    if not labels:
        return [*RankingMetrics(k).result()]
    own = {name: _scores_of(label, grouped) for name, label in labels.items()}
    if labels.only:
        return [score for scores in own.values() for score in scores]
    return [
        *(f"{name}.{score}" for name, scores in own.items() for score in scores),
        "loss",
        "rows",
    ]


def _scores_of(label: Label, grouped: bool) -> tuple[str, ...]:
    more = GroupedAUC.SCORES if grouped and label.is_yes_or_no else ()
    return (*label.scores.SCORES, *more)
