# SPDX-License-Identifier: Apache-2.0
"""Matrix factorization: of ratings, and of choices by Bayesian personalized ranking."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from tvm.relax.frontend import nn

from sparsetrain.embedding import Embedding
from sparsetrain.models import losses
from sparsetrain.models.draws import Draws
from sparsetrain.models.features import Ids, Sequence
from sparsetrain.models.model import Model
from sparsetrain.models.options import require_rows


class MatrixFactorization(Model):
    """A rating is ``m + a_u + b_i + p_u . q_i``, with the squared loss.

    Koren et al. 2009, https://doi.org/10.1109/MC.2009.263.

    Parameters
    ----------
    rows : mapping from str to int
        Rows of the table of each column, as ``dict(zip(encoder.columns, encoder.rows))``.
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
        """(B, 1) ratings."""
        fit = nn.op.sum(self.user(user) * self.item(item), axis=-1, keepdims=True)
        return fit + self.user_bias(user) + self.item_bias(item) + self.mean


class BPR(Model):
    """An item's score is ``p_u . q_i``; the loss ``-log s(p_u . (q_i - q_j))`` with a drawn j.

    Rendle et al. 2009, https://arxiv.org/abs/1205.2618.

    Parameters
    ----------
    rows
        As in `MatrixFactorization`.
    dim : int
        Width of p and q.
    user : str
        Column of the user.
    item : str
        Column of the item that was chosen.
    history : str, optional
        Column of items that the user chose, which are neither negatives nor candidates; it shares
        the table of `item`.
    """

    kind = "bpr"
    target, training_rows = "item", "pair"
    prepared = {"negative": Ids("item")}

    def __init__(
        self,
        rows: Mapping[str, int],
        dim: int = 64,
        user: str = "user",
        item: str = "item",
        history: str | None = None,
    ) -> None:
        super().__init__()
        require_rows(type(self).__name__, rows, user, item)
        self.user, self.item = (Embedding(rows[c], dim, deviation=0.01) for c in (user, item))
        self.features = {"user": Ids("user", column=user), "item": Ids("item", column=item)}
        if history is not None:
            self.features["history"] = Sequence("item", column=history)
            self.seen = "history"

    def prepare(self, features: Mapping[str, Any], draws: Draws) -> Mapping[str, Any]:
        """A negative for each row; one that the history has is drawn again, twice."""
        item, ids = features["item"], self.item_range()
        known: Any = features.get("history")
        drawn = draws.integers("negative", ids.stop, item, ids.start)
        for attempt in ("second", "third") if known is not None else ():
            hit = known.rows()[known.ids == np.repeat(drawn, np.diff(known.offsets))]
            other = draws.integers(f"{attempt} negative", ids.stop, item, ids.start)
            drawn[hit] = other[hit]
        return {"negative": drawn}

    def query(self, user: nn.Tensor) -> nn.Tensor:
        """Vectors of users, (B, D)."""
        return self.user(user)

    def items(self) -> nn.Tensor:
        """Vectors of all items, (V, D)."""
        return self.item.weight

    def loss(self, user: nn.Tensor, item: nn.Tensor, negative: nn.Tensor) -> nn.Tensor:
        """The mean over rows."""
        one = self.user(user)
        yes, no = (nn.op.sum(one * self.item(ids), axis=-1) for ids in (item, negative))
        return losses.mean(losses.bpr(yes, no))
