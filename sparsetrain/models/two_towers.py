# SPDX-License-Identifier: Apache-2.0
"""Two towers: a vector of a user and one of an item, whose product is the score."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tvm.relax.frontend import nn

from sparsetrain.embedding import Embedding, RaggedTensor
from sparsetrain.models import features, losses
from sparsetrain.models.layers import MLP
from sparsetrain.models.model import Model
from sparsetrain.models.options import require_rows


class TwoTowers(Model):
    """Towers over a user's id and recent items, and over an item; the batch gives the negatives.

    The loss of a row is the cross-entropy of its item in the softmax of its scores with all items
    of the batch (Yi et al. 2019, https://doi.org/10.1145/3298689.3346996); of another row an equal
    item, a missing and a rare one are no negatives.

    Parameters
    ----------
    rows : mapping from str to int
        Rows of the table of each column, as ``dict(zip(encoder.columns, encoder.rows))``.
    dim : int
        Width of embeddings and of the towers' results.
    hidden : sequence of int
        Hidden widths of both towers.
    user : str
        Column of the user.
    history : str
        Column of recent items; it shares the table of `item`.
    item : str
        Column of the next item.
    """

    kind = "two_towers"
    target, seen = "item", "history"

    def __init__(
        self,
        rows: Mapping[str, int],
        dim: int = 32,
        hidden: Sequence[int] = (64,),
        user: str = "user",
        history: str = "history",
        item: str = "item",
    ) -> None:
        super().__init__()
        require_rows(type(self).__name__, rows, user, item)
        self.user, self.item = (Embedding(rows[c], dim, deviation=0.1) for c in (user, item))
        self.of_user = MLP([2 * dim, *hidden, dim], last_relu=False)
        self.of_item = MLP([dim, *hidden, dim], last_relu=False)
        self.features = {
            "user": features.Ids("user", column=user),
            "history": features.Sequence("item", column=history),
            "item": features.Ids("item", column=item),
        }

    def query(self, user: nn.Tensor, history: RaggedTensor) -> nn.Tensor:
        """Vectors of users, (B, D)."""
        recent = self.item.pool(history, "mean")
        return self.of_user(nn.op.concat([self.user(user), recent], dim=1))

    def items(self) -> nn.Tensor:
        """Vectors of all items, (V, D)."""
        return self.of_item(self.item.weight)

    def loss(self, user: nn.Tensor, history: RaggedTensor, item: nn.Tensor) -> nn.Tensor:
        """The mean over rows."""
        vectors = self.of_item(self.item(item))
        queries, first = self.query(user, history), self.item_range().start
        found = losses.in_batch_softmax(queries, vectors, ids=item, items_from=first)
        return losses.mean(found)
