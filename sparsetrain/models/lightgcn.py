# SPDX-License-Identifier: Apache-2.0
"""LightGCN: embeddings of users and items, averaged over their neighbours in the graph of choices.

A step multiplies both tables by the graph, so its cost depends on the number of all choices, not on
the batch size: use large batches. The graph is learnt by `fit` and saved with the model.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from tvm.relax import op
from tvm.relax.frontend import nn

from sparsetrain.errors import ConfigError
from sparsetrain.models.features import index_dtype
from sparsetrain.models.initialize import constant
from sparsetrain.models.ranking_model import HISTORY, RankingModel
from sparsetrain.ops.graph import csr_product

if TYPE_CHECKING:  # importing it takes time, and few models need it
    from scipy.sparse import csr_array


class LightGCN(RankingModel):
    """Vectors are means over layers k of ``E_k = (D^-1/2 A D^-1/2)^k E_0`` with the graph A.

    He et al. 2020, https://arxiv.org/abs/2002.02126.

    Parameters
    ----------
    rows : mapping from str to int
        Number of rows of each column's table, ``dict(zip(encoder.columns, encoder.rows))``.
    interactions : int
        Largest number of user-item choices in the training data; the size of the graph's arrays.
    dim : int
        Width of embeddings.
    layers : int
        Number of products with the graph.
    user : str
        Column of the user.
    item : str
        Column of the item that was chosen.
    history : str, optional
        As in `BPR`.
    **ranking
        As in `RankingModel`.
    """

    kind = "lightgcn"
    densify = ("user.weight", "item.weight")  # a step also changes neighbours of the batch's rows

    def __init__(
        self,
        rows: Mapping[str, int],
        interactions: int,
        dim: int = 64,
        layers: int = 3,
        user: str = "user",
        item: str = "item",
        history: str | None = HISTORY,
        **ranking: Any,
    ) -> None:
        super().__init__(**ranking)
        self.layers = layers
        self._read_pairs(rows, dim, user, item, history, deviation=0.1)
        ids = index_dtype(max(rows[user], rows[item]))
        self.items_of, self.users_of = (constant((interactions,), ids) for _ in range(2))
        self.user_ends, self.item_ends = (constant((rows[c],), "int64") for c in (user, item))
        self._table_of_chances(rows[item])

    def learn(self, chosen: csr_array) -> Mapping[str, np.ndarray]:
        """Return the graph, in compressed rows of users and of items."""
        most, found = int(self.items_of.shape[0]), chosen.nnz
        if found > most:
            raise ConfigError(
                f"{type(self).__name__}: there are {found:,} choices to train on, but interactions "
                f"is {most:,}: give the model a larger number"
            )
        graph: dict[str, np.ndarray] = {}
        for name, matrix in {"item": chosen, "user": chosen.T.tocsr()}.items():
            columns = np.zeros(most, matrix.indices.dtype)
            columns[:found] = matrix.indices
            other = "user" if name == "item" else "item"
            graph |= {f"{name}s_of": columns, f"{other}_ends": matrix.indptr[1:]}
        return {**super().learn(chosen), **graph}

    def vectors(self) -> tuple[nn.Tensor, nn.Tensor]:
        """Vectors of all users (U, D) and items (V, D)."""
        user, item = self.user.weight, self.item.weight
        by_user = self.items_of._expr, self.user_ends._expr
        by_item = self.users_of._expr, self.item_ends._expr
        of_users, of_items = _inverse_root(self.user_ends), _inverse_root(self.item_ends)
        users, items = user, item
        for _ in range(self.layers):
            # Both products read the vectors of the previous layer.
            near, far = (item * of_items)._expr, (user * of_users)._expr
            user = nn.wrap_nested(csr_product(near, *by_user, *by_item), "users") * of_users
            item = nn.wrap_nested(csr_product(far, *by_item, *by_user), "items") * of_items
            users, items = users + user, items + item
        return users / float(self.layers + 1), items / float(self.layers + 1)

    def query(self, user: nn.Tensor) -> nn.Tensor:
        """Vectors of users, (B, D)."""
        return self.scored(nn.op.take(self.vectors()[0], user, axis=0))

    def items(self) -> nn.Tensor:
        """Vectors of all items, (V, D)."""
        return self.scored(self.vectors()[1])

    def loss(
        self, user: nn.Tensor, item: nn.Tensor, negative: nn.Tensor | None = None
    ) -> nn.Tensor:
        """Return the mean loss of the rows."""
        ids = [item] if negative is None else [item, negative]
        users, items = self.vectors()
        vectors = [nn.op.take(users, user, axis=0), *(nn.op.take(items, n, axis=0) for n in ids)]
        loss = self.compared(ids, *vectors)
        return self.with_decay(loss, self.user(user), *map(self.item, ids))


def _inverse_root(ends: nn.Parameter) -> nn.Tensor:
    """Return ``1 / sqrt(length)`` for each row, 0 for an empty row, (R, 1)."""
    rows = int(ends.shape[0])
    begins = nn.op.concat([nn.op.zeros((1,), "int64"), ends], dim=0)
    first = nn.wrap_nested(
        op.strided_slice(begins._expr, axes=[0], begin=[0], end=[rows]), "begins"
    )
    length = nn.op.reshape(nn.op.astype(ends - first, "float32"), (rows, 1))
    least = nn.op.maximum(length, nn.op.ones((rows, 1), "float32"))
    return nn.op.minimum(length, nn.op.ones((rows, 1), "float32")) / nn.op.sqrt(least)
