# SPDX-License-Identifier: Apache-2.0
"""Baseline of a ranking: the metrics of Pop, which ranks all items by popularity for every user.

An item's popularity is the number of rows that have it in their histories. So wanted items do not
count, and no training data are needed. The ids of all rows are kept until the end, and an
evaluation takes up to twice as long; validations during training leave the baseline out.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from sparsetrain.data import Ragged
from sparsetrain.metrics import RankingMetrics

_POP = "pop_"  # prefix of a score's name


class _Rows(NamedTuple):
    """Wanted and seen items of a batch; candidate ids, or None if all items are candidates."""

    wanted: Ragged
    counts: np.ndarray
    seen: Ragged
    ids: np.ndarray | None


class Floor:
    """Metrics of Pop for rows that are added batch by batch.

    Parameters
    ----------
    k
        As in `RankingMetrics`.
    no_items : ndarray (V,) bool
        Marks the rows of the item table that are not items.
    """

    def __init__(self, k: int | Sequence[int], no_items: np.ndarray) -> None:
        self._k, self._no_items = k, no_items
        self._listed = np.zeros(len(no_items), np.int64)
        self._rows: list[_Rows] = []

    def add(self, wanted: Ragged, counts: np.ndarray, seen: Ragged, ids: np.ndarray | None) -> None:
        """Add rows as in `RankingMetrics.update`; `ids` (B, I) are the candidates' ids."""
        items = len(self._no_items)
        once = np.unique(seen.rows() * items + seen.ids) % items
        self._listed += np.bincount(once, minlength=items)
        self._rows.append(_Rows(wanted, counts, seen, ids))

    def result(self) -> dict[str, Any]:
        """Return the metrics, ``pop_ndcg@10`` and so on; empty without a history."""
        if not self._listed.any():
            return {}
        metrics = RankingMetrics(self._k)
        popular = np.where(self._no_items, -np.inf, self._listed).astype(np.float32)
        for rows in self._rows:
            if rows.ids is None:
                scores = np.broadcast_to(popular, (len(rows.counts), len(popular)))
                metrics.update(scores, rows.wanted, rows.seen, rows.counts)
            else:
                metrics.update(popular[rows.ids], rows.wanted, None, rows.counts)
        return {f"{_POP}{name}": value for name, value in metrics.result().items() if "@" in name}
