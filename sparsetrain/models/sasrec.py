# SPDX-License-Identifier: Apache-2.0
"""SASRec: next-item prediction by causal attention over a history."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from tvm.relax.frontend import nn

from sparsetrain.data.ragged import Ragged
from sparsetrain.embedding import Embedding, RaggedTensor
from sparsetrain.models import losses
from sparsetrain.models.arguments import require_rows
from sparsetrain.models.attention import Positions, TransformerBlock
from sparsetrain.models.draws import Draws
from sparsetrain.models.features import Ids, Sequence
from sparsetrain.models.layers import Dropout
from sparsetrain.models.model import Model


class SASRec(Model):
    """Self-attentive sequential recommendation: scores are products of history and item vectors.

    The vector x at each position predicts the next item, its positive, against a drawn negative:
    ``-log s(x . positive) - log(1 - s(x . negative))`` (Kang and McAuley 2018,
    https://arxiv.org/abs/1808.09781). Positions count from the last item, and a norm precedes each
    attention and feed-forward layer.

    Parameters
    ----------
    rows : mapping from str to int
        Number of rows of each column's table, ``dict(zip(encoder.columns, encoder.rows))``.
    dim : int
        Width of an item's vector.
    blocks : int
        Number of transformer blocks.
    heads : int
        Attention heads of each block.
    length : int
        Maximum number of items in a history; the last ones are kept.
    dropout : float
        Dropout rate of the input, of the attention weights and inside feed-forward layers.
    history : str
        Column of the items chosen before, in order; it shares the table of `item`.
    item : str
        Column of the next item.
    """

    kind = "sasrec"
    target, seen = "item", "history"
    training_rows = "user"
    prepared = {name: Sequence("item", like="history") for name in ("wanted", "negative")}

    def __init__(
        self,
        rows: Mapping[str, int],
        dim: int = 50,
        blocks: int = 2,
        heads: int = 1,
        length: int = 50,
        dropout: float = 0.5,
        history: str = "history",
        item: str = "item",
    ) -> None:
        super().__init__()
        require_rows(type(self).__name__, rows, item)
        self.item, self.positions = (
            Embedding(rows[item], dim, deviation=0.02),
            Positions(length, dim, from_end=True),
        )
        self.blocks = transformer(blocks, dim, heads, dropout, causal=True, length=length)
        self.norm, self.dropout = nn.LayerNorm(dim), Dropout(dropout)
        self.features = {
            "history": Sequence("item", length, column=history),
            "item": Ids("item", column=item),
        }

    def prepare(self, features: Mapping[str, Any], draws: Draws) -> Mapping[str, Any]:
        """Return each item's successor, and a negative, redrawn at most twice if in the row."""
        whole = features["history"].append(features["item"])
        wanted = whole.without_first()
        negative = unseen(draws, whole, wanted, self.item_range())
        return {"wanted": wanted, "negative": negative}

    def vectors(self, history: RaggedTensor) -> RaggedTensor:
        """Ids (N,) -> vectors (N, D), to which positions are added."""
        return self.item(history).map(lambda rows: rows * self.item.width**0.5)

    def encode(self, history: RaggedTensor) -> RaggedTensor:
        """Ids (N,) -> vectors (N, D): the outputs of the blocks at each item."""
        x = self.positions(self.vectors(history)).map(self.dropout)
        for block in self.blocks:
            x = block(x)
        return x.map(self.norm)

    def query(self, history: RaggedTensor) -> nn.Tensor:
        """Return the vector of each history, (B, D)."""
        return self.encode(history).last()

    def items(self) -> nn.Tensor:
        """Vectors of all items, (V, D)."""
        return self.item.weight

    def loss(
        self, history: RaggedTensor, wanted: RaggedTensor, negative: RaggedTensor
    ) -> nn.Tensor:
        """Return the mean loss over all items of the histories."""
        x = self.encode(history).values
        scores = [nn.op.sum(x * self.item(ids.values), axis=-1) for ids in (wanted, negative)]
        yes, no = map(losses.binary_cross_entropy, scores, (1.0, 0.0))
        return losses.mean(yes + no)


def transformer(blocks: int, dim: int, heads: int, dropout: float, **options: Any) -> nn.ModuleList:
    """Return transformer blocks with feed-forward layers as wide as the tokens."""
    layers = range(blocks)
    return nn.ModuleList(
        [TransformerBlock(dim, heads, hidden=dim, dropout=dropout, **options) for _ in layers]
    )


def unseen(draws: Draws, seen: Ragged, like: Ragged, ids: range) -> Ragged:
    """Draw one of `ids` for each token of `like`, preferably one not seen in its row.

    A seen item is drawn again, at most twice.
    """
    known = np.unique(seen.rows() * ids.stop + seen.ids)
    drawn = draws.integers("negative", ids.stop, like, ids.start).ids
    for attempt in ("second", "third"):
        places = like.rows() * ids.stop + drawn
        hit = known[np.searchsorted(known, places).clip(max=len(known) - 1)] == places
        other = draws.integers(f"{attempt} negative", ids.stop, like, ids.start).ids
        drawn = np.where(hit, other, drawn)
    return Ragged(drawn, like.offsets)
