# SPDX-License-Identifier: Apache-2.0
"""Matrix factorization: of ratings, and of choices by Bayesian personalized ranking."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tvm.relax.frontend import nn

from sparsetrain.embedding import Embedding
from sparsetrain.models.arguments import require_rows
from sparsetrain.models.features import Ids
from sparsetrain.models.model import Model
from sparsetrain.models.ranking_model import HISTORY, RankingModel


class MatrixFactorization(Model):
    """A rating is ``m + a_u + b_i + p_u . q_i``, with the squared loss.

    Koren et al. 2009, https://doi.org/10.1109/MC.2009.263.

    Parameters
    ----------
    rows : mapping from str to int
        Number of rows of each column's table, ``dict(zip(encoder.columns, encoder.rows))``.
    dim : int
        Width of p and q.
    user : str
        Column of the user.
    item : str
        Column of the item.
    rating : str
        Column of ratings.
    """

    kind = "mf"

    def __init__(
        self,
        rows: Mapping[str, int],
        dim: int = 64,
        user: str = "user",
        item: str = "item",
        rating: str = "rating",
    ) -> None:
        super().__init__()
        require_rows(type(self).__name__, rows, user, item)
        self.user, self.item = (Embedding(rows[c], dim, deviation=0.1) for c in (user, item))
        self.user_bias, self.item_bias = (
            Embedding(rows[c], 1, deviation=0.01) for c in (user, item)
        )
        self.mean = nn.Parameter((1,), "float32")
        self.mean.attrs["initial"] = 0.0
        self.features = {
            "user": Ids(("user", "user_bias"), column=user),
            "item": Ids(("item", "item_bias"), column=item),
        }
        self.labels = {rating: "real"}

    def forward(self, user: nn.Tensor, item: nn.Tensor) -> nn.Tensor:
        """Return predicted ratings, (B, 1)."""
        fit = nn.op.sum(self.user(user) * self.item(item), axis=-1, keepdims=True)
        return fit + self.user_bias(user) + self.item_bias(item) + self.mean


class BPR(RankingModel):
    """An item's score is ``p_u . q_i``; by default the loss is ``-log s(p_u . (q_i - q_j))``.

    Rendle et al. 2009, https://arxiv.org/abs/1205.2618. With ``loss="ccl"``, which scores by
    cosines, and many negatives, it is the matrix factorization of SimpleX,
    https://arxiv.org/abs/2109.12613.

    Parameters
    ----------
    rows
        As in `MatrixFactorization`.
    dim : int
        Width of p and q.
    user : str
        Column of the user.
    item : str
        Column of the chosen item.
    history : str, optional
        Column of the user's earlier items, which are neither negatives nor candidates; it shares
        the table of `item`. By default it is read if the data have it.
    **ranking
        As in `RankingModel`.
    """

    kind = "bpr"

    def __init__(
        self,
        rows: Mapping[str, int],
        dim: int = 64,
        user: str = "user",
        item: str = "item",
        history: str | None = HISTORY,
        **ranking: Any,
    ) -> None:
        super().__init__(**ranking)
        self._read_pairs(rows, dim, user, item, history, deviation=0.01)
        self._table_of_chances(rows[item])

    def query(self, user: nn.Tensor) -> nn.Tensor:
        """Vectors of users, (B, D)."""
        return self.scored(self.user(user))

    def items(self) -> nn.Tensor:
        """Vectors of all items, (V, D)."""
        return self.scored(self.item.weight)

    def loss(
        self, user: nn.Tensor, item: nn.Tensor, negative: nn.Tensor | None = None
    ) -> nn.Tensor:
        """Return the mean loss of the rows."""
        ids = [item] if negative is None else [item, negative]
        vectors = [self.user(user), *map(self.item, ids)]
        return self.with_decay(self.compared(ids, *vectors), *vectors)
