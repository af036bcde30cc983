# SPDX-License-Identifier: Apache-2.0
"""`ClosedForm`, the base of models solved at once from all choices, without gradient steps."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from sparsetrain.models.arguments import require_rows
from sparsetrain.models.features import Ids, Sequence
from sparsetrain.models.model import Model

if TYPE_CHECKING:  # a slow import that few models need
    from scipy.sparse import csr_array


class ClosedForm(Model, ABC):
    """Base of models that score items only from a row's history.

    A subclass declares constant parameters, computes their values in `learn`, and scores items in
    `score_history`, both with SciPy.
    """

    target, seen, training_rows = "item", "history", "item"

    def __init__(self, rows: Mapping[str, int], user: str, item: str, history: str) -> None:
        super().__init__()
        require_rows(type(self).__name__, rows, user, item, history)
        self._rows = {"user": rows[user], "item": rows[item], "history": rows[item]}
        self.features = {
            "user": Ids("user", column=user),
            "item": Ids("item", column=item),
            "history": Sequence("item", column=history),
        }

    @property
    def _table_rows(self) -> dict[str, int]:
        """Sizes by feature: ids index a matrix, since there is no table."""
        return self._rows

    def tables(self) -> Mapping[str, dict[str, slice]]:
        """Return an empty mapping: there are no tables."""
        return {}

    def score_items(
        self, features: Mapping[str, Any], params: Mapping[str, np.ndarray]
    ) -> np.ndarray:
        """Return the scores (B, V) of all items, from each row's history."""
        from scipy.sparse import csr_array

        lists, items = features["history"], self._rows["item"]
        keys = np.unique(lists.rows() * items + lists.ids)  # each item once
        row, ids = np.divmod(keys, items)
        history = csr_array((np.ones(len(keys), np.float32), (row, ids)), shape=(len(lists), items))
        return np.asarray(self.score_history(history, params), np.float32)

    @abstractmethod
    def score_history(self, history: csr_array, params: Mapping[str, np.ndarray]) -> np.ndarray:
        """Return scores (B, V); `history` (B, V) has a 1 for each item of a row's history."""
