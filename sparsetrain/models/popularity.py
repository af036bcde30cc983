# SPDX-License-Identifier: Apache-2.0
"""Pop: items ranked by the number of users who chose them, the same for every user."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from sparsetrain.models.closed_form import ClosedForm
from sparsetrain.models.initialize import constant

if TYPE_CHECKING:  # importing it takes time, and few models need it
    from scipy.sparse import csr_array


class Pop(ClosedForm):
    """An item's score is the number of users who chose it.

    Parameters
    ----------
    rows : mapping from str to int
        Number of rows of each column's table, ``dict(zip(encoder.columns, encoder.rows))``.
    user, item, history : str
        Columns of the user, of the chosen item and of the items chosen before.
    """

    kind = "pop"

    def __init__(
        self,
        rows: Mapping[str, int],
        user: str = "user",
        item: str = "item",
        history: str = "history",
    ) -> None:
        super().__init__(rows, user, item, history)
        self.counts = constant((rows[item],), "float32")

    def learn(self, chosen: csr_array) -> Mapping[str, np.ndarray]:
        """Count the users who chose each item."""
        return {"counts": np.bincount(chosen.indices, minlength=chosen.shape[1])}

    def score_history(self, history: csr_array, params: Mapping[str, np.ndarray]) -> np.ndarray:
        """Return the same counts for each row."""
        return np.tile(params["counts"], (history.shape[0], 1))
