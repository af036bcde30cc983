# SPDX-License-Identifier: Apache-2.0
"""Two towers: one for users, one for items; the dot product of their vectors is the score."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from tvm.relax.frontend import nn

from sparsetrain.data.ragged import Ragged
from sparsetrain.embedding import Embedding, RaggedTensor
from sparsetrain.models import features
from sparsetrain.models.arguments import require_rows
from sparsetrain.models.draws import Draws
from sparsetrain.models.layers import MLP
from sparsetrain.models.ranking_model import Loss, RankingModel

if TYPE_CHECKING:  # importing it takes time, and few models need it
    from scipy.sparse import csr_array


class TwoTowers(RankingModel):
    """A tower for a user's id and recent items, and a tower for items.

    By default the batch's items are the negatives: a row's loss is the cross-entropy of its item in
    the softmax over the scores of all items of the batch (Yi et al. 2019,
    https://doi.org/10.1145/3298689.3346996). An item of another row is no negative if it equals the
    row's item, is missing or is rare.

    Parameters
    ----------
    rows : mapping from str to int
        Number of rows of each column's table, ``dict(zip(encoder.columns, encoder.rows))``.
    dim : int
        Width of embeddings and of the towers' outputs.
    hidden : sequence of int
        Hidden widths of both towers.
    user : str
        Column of the user.
    history : str
        Column of recent items; it shares the table of `item`.
    item : str
        Column of the next item.
    history_of : {"rows", "users"}
        Source of a training row's history: the row itself, or all other items that its user chose
        in the rows of `fit`, for data without an order. With "users", store rows without a history
        (``each="item"``), since each user's items are kept once anyway.
    loss
        As in `RankingModel`; by default "in_batch".
    **ranking
        As in `RankingModel`.
    """

    kind = "two_towers"
    seen: str | None = "history"
    training_rows = "event"

    def __init__(
        self,
        rows: Mapping[str, int],
        dim: int = 32,
        hidden: Sequence[int] = (64,),
        user: str = "user",
        history: str = "history",
        item: str = "item",
        history_of: Literal["rows", "users"] = "rows",
        loss: Loss = "in_batch",
        **ranking: Any,
    ) -> None:
        super().__init__(loss=loss, **ranking)
        require_rows(type(self).__name__, rows, user, item)
        self.user, self.item = (Embedding(rows[c], dim, deviation=0.1) for c in (user, item))
        self.of_user = MLP([2 * dim, *hidden, dim], last_relu=False)
        self.of_item = MLP([dim, *hidden, dim], last_relu=False)
        self.features = {
            "user": features.Ids("user", column=user),
            "history": features.Sequence("item", column=history),
            "item": features.Ids("item", column=item),
        }
        self.history_of = history_of
        self._chosen = Ragged(np.empty(0, np.int64), np.zeros(rows[user] + 1, np.int64))
        if history_of == "users":
            self.prepared = {**self.prepared, "history": self.features["history"]}
        self._table_of_chances(rows[item])

    def learn(self, chosen: csr_array) -> Mapping[str, np.ndarray]:
        """Store the items of each user."""
        self._chosen = Ragged(chosen.indices, chosen.indptr)
        return super().learn(chosen)

    def prepare(self, features: Mapping[str, Any], draws: Draws) -> Mapping[str, Any]:
        """Return negatives, and histories if ``history_of="users"``."""
        made = super().prepare(features, draws)
        if self.history_of == "rows":
            return made
        whole = self._chosen.take(features["user"])
        other = np.flatnonzero(whole.ids != np.repeat(features["item"], np.diff(whole.offsets)))
        ends = np.searchsorted(other, whole.offsets)
        return {**made, "history": Ragged(whole.ids[other], ends)}

    def query(self, user: nn.Tensor, history: RaggedTensor) -> nn.Tensor:
        """Vectors of users, (B, D)."""
        recent = self.item.pool(history, "mean")
        return self.scored(self.of_user(nn.op.concat([self.user(user), recent], dim=1)))

    def items(self) -> nn.Tensor:
        """Vectors of all items, (V, D)."""
        return self.scored(self.of_item(self.item.weight))

    def loss(
        self,
        user: nn.Tensor,
        history: RaggedTensor,
        item: nn.Tensor,
        negative: nn.Tensor | None = None,
    ) -> nn.Tensor:
        """Return the mean loss of the rows."""
        ids = [item] if negative is None else [item, nn.op.reshape(negative, (-1,))]
        rows = [self.item(each) for each in ids]
        loss = self.compared(ids, self.query(user, history), *map(self.of_item, rows))
        return self.with_decay(loss, self.user(user), *rows) if self.decay else loss
