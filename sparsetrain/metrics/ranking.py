# SPDX-License-Identifier: Apache-2.0
"""Ranking metrics: ranks of each user's chosen items among all items or a list of candidates.

A chosen item's rank is 1 plus the number of items that score at least as high, counted without a
sort. So ties count against the model: a model with equal scores for all items gets the lowest
possible metrics. Cost: one pass over a user's scores per chosen item, about 10 us for 24,000 items.
Scores of all users are never held at once.

Definitions are RecBole's (https://recbole.io/docs/recbole/recbole.evaluator.metrics.html). `c` is
the number of items that a user chose, `h` the number of them with a rank of at most k; the sums go
over these `h` items:


- HR: 1 if h > 0, else 0; Recall: h / c; Precision: h / k
- MRR: 1 / (best rank), or 0 if that is above k
- NDCG: sum of 1 / log2(rank + 1) over them, divided by the same sum over ranks 1 to min(c, k)
- MAP: sum of (number of chosen items up to this rank) / rank over them, divided by min(c, k)
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np

from sparsetrain.errors import ConfigError, DataError, NumericalError
from sparsetrain.metrics.scores import Scores, ratio
from sparsetrain.system.argument_checks import require_int

METRICS = ("hr", "ndcg", "mrr", "recall", "precision", "map")
_BLOCK = 1 << 22  # scores computed at once: 16 MB


class Lists(Protocol):
    """Interface for lists of items, such as `sparsetrain.data.Ragged`."""

    @property
    def ids(self) -> Any:
        """All items, (N,)."""

    def __len__(self) -> int: ...

    def check_offsets(self, where: str, count: int) -> None:
        """Refuse overlapping lists or gaps between them."""

    def rows(self) -> np.ndarray:
        """Return the number of each item's list, (N,)."""

    def take(self, rows: Any) -> Any:
        """Return some of the lists."""


class RankingMetrics:
    """Ranking metrics averaged over users, computed batch by batch.

    Parameters
    ----------
    k : int or sequence of int
        Cutoffs: the metrics look at the k highest-ranked items.

    Examples
    --------
    >>> metrics = RankingMetrics(k=2)
    >>> # (users, 1 + 2): the score of the chosen item, then two more
    >>> metrics.update(np.array([[0.3, 0.9, 0.1], [0.5, 0.2, 0.4]]))
    >>> metrics.result()["hr@2"], metrics.result()["mrr@2"]
    (1.0, 0.75)
    """

    def __init__(self, k: int | Sequence[int] = 10) -> None:
        given = k if isinstance(k, Sequence) else [k]
        self.k = [require_int("k", n) for n in given]
        self._sums = np.zeros((len(self.k), len(METRICS)))
        self._users = self._empty = 0

    def update(
        self,
        scores: np.ndarray,
        chosen: Lists | None = None,
        seen: Lists | None = None,
        counts: np.ndarray | None = None,
    ) -> None:
        """Add the scores of a batch of users.

        Parameters
        ----------
        scores : ndarray (B, I) of a float type
            Score of each item for each user. -inf ranks an item last.
        chosen : Ragged of B lists, optional
            Items that each user chose, as columns of `scores`; by default the item of the first
            column: the scores are then of one chosen item and I - 1 negatives.
        seen : Ragged of B lists, optional
            Items left out of the ranking, such as items seen in training. A chosen item is ranked
            even if it is in `seen`.
        counts : ndarray (B,) of integers, optional
            Number of items that each user chose, if some have no score, such as new items; by
            default the lengths of the lists in `chosen`.

        Raises
        ------
        ConfigError
            If a k is above I, the shapes do not fit, or a count is below the number of items
            listed.
        DataError
            If an item is not from 0 to I - 1.
        NumericalError
            If a score is NaN. Messages count users from the first user that was added.
        """
        if scores.ndim != 2:
            raise ConfigError(f"scores must have the shape (users, items), not {scores.shape}")
        users, items = scores.shape
        for k in self.k:
            if k > items:
                raise ConfigError(f"k is {k:,}, but there are {items:,} items to rank")
        own = (
            np.arange(users) * items if chosen is None else _places("chosen", chosen, scores.shape)
        )
        own = np.unique(own)
        other = (
            np.setdiff1d(_places("seen", seen, scores.shape), own) if seen is not None else own[:0]
        )
        row, rank, place = _ranks(scores, own, other, self._users + self._empty)
        count = _counts(counts, np.bincount(row, minlength=users))
        for number, k in enumerate(self.k):
            self._sums[number] += _sums(row, rank, place, count, k)
        self._users += int(np.count_nonzero(count))
        self._empty += int(np.count_nonzero(count == 0))

    def merge(self, other: RankingMetrics) -> None:
        """Add the users that `other` has seen, with the same k; `other` is unchanged."""
        if self.k != other.k:
            raise ConfigError(f"metrics with k={other.k} cannot be merged into k={self.k}")
        self._sums += other._sums
        self._users += other._users
        self._empty += other._empty

    def result(self) -> Scores:
        """Return the means of all users so far.

        Returns
        -------
        dict
            ``hr@K``, ``ndcg@K``, ``mrr@K``, ``recall@K``, ``precision@K`` and ``map@K`` for each k;
            None if there are no users.

            `users` : number of users in the means.
            `users_without_items` : number of users who chose nothing, and are left out.
        """
        scores: Scores = {
            f"{name}@{k}": ratio(float(total), self._users)
            for k, sums in zip(self.k, self._sums, strict=True)
            for name, total in zip(METRICS, sums, strict=True)
        }
        return {**scores, "users": self._users, "users_without_items": self._empty}


def rank_items(
    users: np.ndarray,
    items: np.ndarray,
    chosen: Lists,
    *,
    seen: Lists | None = None,
    counts: np.ndarray | None = None,
    k: int | Sequence[int] = 10,
) -> Scores:
    """Rank all items for each user by the inner product of their vectors.

    Parameters
    ----------
    users : ndarray (U, D)
    items : ndarray (I, D)
    chosen, seen : Ragged of U lists
    counts : ndarray (U,) of integers, optional
        As in `RankingMetrics.update`.
    k : int or sequence of int

    Returns
    -------
    dict
        As in `RankingMetrics.result`.

    Raises
    ------
    ConfigError, DataError, NumericalError
        As in `RankingMetrics.update`.

    Examples
    --------
    >>> from sparsetrain.data import Ragged
    >>> chosen = Ragged([0, 1], [0, 1, 2, 2])
    >>> rank_items(np.eye(3), np.eye(3), chosen, k=1)["users_without_items"]
    1
    """
    if users.ndim != 2 or items.ndim != 2 or users.shape[1] != items.shape[1]:
        raise ConfigError(
            f"users {users.shape} and items {items.shape} must be matrices of one width"
        )
    metrics = RankingMetrics(k)
    for name, lists in {"chosen": chosen, "seen": seen}.items():
        if lists is not None and len(lists) != len(users):
            raise ConfigError(f"{name} has {len(lists)} lists for {len(users)} users")
        if lists is not None:  # checked as a whole, before blocks shift the offsets to 0
            lists.check_offsets(f"{name}: ", len(users))
    if counts is not None and np.shape(counts) != (len(users),):
        raise ConfigError(f"counts has the shape {np.shape(counts)} for {len(users)} users")
    step = max(1, _BLOCK // max(1, len(items)))
    for begin in range(0, len(users), step):
        block = slice(begin, begin + step)
        others = None if seen is None else seen.take(block)
        count = None if counts is None else counts[block]
        metrics.update(users[block] @ items.T, chosen.take(block), others, count)
    return metrics.result()


def _places(name: str, lists: Lists, shape: tuple[int, int]) -> np.ndarray:
    """Return the positions of listed items in flattened scores (users, items)."""
    users, items = shape
    if len(lists) != users:
        raise ConfigError(f"{name} has {len(lists)} lists for {users} rows of scores")
    lists.check_offsets(f"{name}: ", users)
    ids, row = lists.ids, lists.rows()
    outside = (ids < 0) | (ids >= items)
    if outside.any():
        at = int(outside.argmax())
        raise DataError(f"{name}: list {row[at]} has item {ids[at]}, but there are {items} items")
    return row * items + ids


def _counts(given: np.ndarray | None, listed: np.ndarray) -> np.ndarray:
    """Return how many items each user chose: `given`, or `listed`, the distinct listed items."""
    if given is None:
        return listed
    counts = np.asarray(given)
    if counts.shape != listed.shape or counts.dtype.kind not in "iu":
        raise ConfigError(f"counts: give an integer for each of {len(listed)} rows of scores")
    if (counts < listed).any():
        at = int((counts < listed).argmax())
        raise ConfigError(
            f"counts: {counts[at]} for list {at}, but the list has {listed[at]} items; a count "
            "must include all listed items"
        )
    return counts.astype(np.int64)


def _ranks(
    scores: np.ndarray, chosen: np.ndarray, seen: np.ndarray, before: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return each chosen item's row, rank, and position among the row's chosen items, from 1.

    Within a row, ranks increase.
    """
    items = scores.shape[1]
    flat = scores.reshape(-1)
    row, score = chosen // items, flat[chosen]
    order = np.lexsort((-score, row))
    row, score = row[order], score[order]
    users = np.arange(len(scores) + 1)
    first, first_seen = np.searchsorted(row, users), np.searchsorted(seen // items, users)
    hidden = flat[seen]
    higher = np.empty(len(row), np.int64)  # number of items not chosen that score at least as high
    for user in np.unique(row):
        own, mine = scores[user], slice(first[user], first[user + 1])
        if np.isnan(own.max()):
            raise NumericalError(f"a score of user {before + user} is NaN")
        unranked = hidden[first_seen[user] : first_seen[user + 1]]
        for at in range(mine.start, mine.stop):
            limit = score[at]
            higher[at] = (
                np.count_nonzero(own >= limit)
                - np.count_nonzero(unranked >= limit)
                - np.count_nonzero(score[mine] >= limit)
            )
    place = np.arange(len(row)) - first[row] + 1
    return row, higher + place, place


def _sums(
    row: np.ndarray, rank: np.ndarray, place: np.ndarray, count: np.ndarray, k: int
) -> list[float]:
    """Return the sums over users of `METRICS` at k."""
    hit = rank <= k
    row, rank, place = row[hit], rank[hit], place[hit]
    chosen = count[row]
    best = place == 1
    discounts = 1 / np.log2(np.arange(2, k + 2))
    ideal = np.cumsum(discounts)
    most = np.minimum(chosen, k)
    return [
        float(np.count_nonzero(best)),
        float((discounts[rank - 1] / ideal[most - 1]).sum()),
        float((1 / rank[best]).sum()),
        float((1 / chosen).sum()),
        len(row) / k,
        float((place / rank / most).sum()),
    ]
