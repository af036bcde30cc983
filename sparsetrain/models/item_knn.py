# SPDX-License-Identifier: Apache-2.0
"""ItemKNN: item scores by similarity to a history's items, from co-occurrence among users."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from sparsetrain.models.closed_form import ClosedForm
from sparsetrain.models.initialize import constant

if TYPE_CHECKING:  # importing it takes time, and few models need it
    from scipy.sparse import csr_array

_COLUMNS = 1024  # items that are compared with all items at a time


class ItemKNN(ClosedForm):
    """An item's score sums its similarities to the history's items among its k nearest items.

    The similarity is the cosine ``n_ij / (sqrt(n_i n_j) + shrink)`` of the sets of users that chose
    the two items (Deshpande and Karypis 2004, https://doi.org/10.1145/963770.963776).

    Parameters
    ----------
    rows : mapping from str to int
        Number of rows of each column's table, ``dict(zip(encoder.columns, encoder.rows))``.
    neighbours : int
        k, the number of nearest items.
    shrink : float
        Reduces similarities that are based on few users.
    user, item, history : str
        Columns of the user, of the chosen item and of the items chosen before.
    """

    kind = "item_knn"

    def __init__(
        self,
        rows: Mapping[str, int],
        neighbours: int = 100,
        shrink: float = 0.0,
        user: str = "user",
        item: str = "item",
        history: str = "history",
    ) -> None:
        super().__init__(rows, user, item, history)
        self.shrink = shrink
        kept = min(neighbours, rows[item])
        self.nearest = constant((rows[item], kept), "int32")
        self.similarities = constant((rows[item], kept), "float32")

    def learn(self, chosen: csr_array) -> Mapping[str, np.ndarray]:
        """Find the nearest items of each item, `_COLUMNS` items at a time."""
        x = chosen.astype(np.float32).tocsc()
        kept, norms = int(self.nearest.shape[1]), np.sqrt(np.diff(x.indptr))
        nearest = np.zeros((x.shape[1], kept), np.int32)
        similarities = np.zeros(nearest.shape, np.float32)
        for first in range(0, x.shape[1], _COLUMNS):
            own = np.arange(first, min(first + _COLUMNS, x.shape[1]))
            both = (x[:, own].T @ x).toarray()  # (own, V)
            both /= np.outer(norms[own], norms) + (self.shrink + 1e-6)
            both[np.arange(len(own)), own] = 0
            nearest[own] = np.argpartition(-both, kept - 1, axis=1)[:, :kept]
            similarities[own] = np.take_along_axis(both, nearest[own], axis=1)
        return {"nearest": nearest, "similarities": similarities}

    def score_history(self, history: csr_array, params: Mapping[str, np.ndarray]) -> np.ndarray:
        """Return ``X W``; column i of W has the similarities of the items nearest to i."""
        from scipy.sparse import csc_array

        nearest, similarities = params["nearest"], params["similarities"]
        offsets = np.arange(0, nearest.size + 1, nearest.shape[1])
        shape = (len(nearest), len(nearest))
        weights = csc_array((similarities.ravel(), nearest.ravel(), offsets), shape=shape)
        return (history @ weights).toarray()
