# SPDX-License-Identifier: Apache-2.0
"""EASE: a linear model from histories to items, by the inverse of one item matrix."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from sparsetrain.models.closed_form import ClosedForm
from sparsetrain.models.initialize import constant

if TYPE_CHECKING:  # importing it takes time, and few models need it
    from scipy.sparse import csr_array


class EASE(ClosedForm):
    """Scores are ``X B``; B minimizes ``|X - X B|² + l2 |B|²`` with zeros on its diagonal.

    With ``P = (X'X + l2 I)^-1`` the solution is ``B = I - P / diag(P)``, column by column (Steck
    2019, https://arxiv.org/abs/1905.03375). B has a number for each pair of items, and solving
    takes cubic time: use it for up to about 20,000 items.

    Parameters
    ----------
    rows : mapping from str to int
        Number of rows of each column's table, ``dict(zip(encoder.columns, encoder.rows))``.
    l2 : int
        Factor of the regularization.
    user, item, history : str
        Columns of the user, of the chosen item and of the items chosen before.
    """

    kind = "ease"

    def __init__(
        self,
        rows: Mapping[str, int],
        l2: int = 250,
        user: str = "user",
        item: str = "item",
        history: str = "history",
    ) -> None:
        super().__init__(rows, user, item, history)
        self.l2 = l2
        self.weight = constant((rows[item], rows[item]), "float32")

    def learn(self, chosen: csr_array) -> Mapping[str, np.ndarray]:
        """Solve for B, in float64."""
        from scipy.linalg import cho_factor, cho_solve

        x = chosen.astype(np.float64)
        gram = (x.T @ x).toarray()
        gram[np.diag_indices_from(gram)] += self.l2
        inverse = cho_solve(cho_factor(gram, overwrite_a=True), np.eye(len(gram)))
        weight = inverse / -np.diag(inverse)
        np.fill_diagonal(weight, 0)
        return {"weight": weight}

    def score_history(self, history: csr_array, params: Mapping[str, np.ndarray]) -> np.ndarray:
        """Return ``X B``."""
        return history @ params["weight"]
