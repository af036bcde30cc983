# SPDX-License-Identifier: Apache-2.0
"""DIN: click prediction, by attention of a candidate item to the items of a history."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tvm.relax.frontend import nn

from sparsetrain.embedding import Embedding, RaggedTensor
from sparsetrain.models import features
from sparsetrain.models.arguments import require_rows
from sparsetrain.models.layers import MLP
from sparsetrain.models.model import Model


class DIN(Model):
    """Deep interest network: ``MLP([embeddings, sum_j a(e_j, v) e_j])`` for a candidate v.

    ``a(e, v) = MLP([e, v, e - v, e v])`` weights each item of the history, without a softmax (Zhou
    et al. 2018, https://arxiv.org/abs/1706.06978).

    Parameters
    ----------
    rows : mapping from str to int
        Number of rows of each column's table, ``dict(zip(encoder.columns, encoder.rows))``. Columns
        besides `item` and `history` have one id in each row.
    dim : int
        Width of all embeddings.
    attention : sequence of int
        Hidden widths of the attention's MLP, a.
    top : sequence of int
        Hidden widths of the last MLP.
    length : int
        Maximum number of items in a history.
    history : str
        Column of the items chosen before; it shares the table of `item`.
    item : str
        Column of the candidate item.
    label : str
        Column of the label, 1 for a click and 0 otherwise.
    dropout : float
        Dropout rate between the layers of the last MLP.
    """

    kind = "din"

    def __init__(
        self,
        rows: Mapping[str, int],
        dim: int = 16,
        attention: Sequence[int] = (36,),
        top: Sequence[int] = (200, 80),
        length: int = 50,
        history: str = "history",
        item: str = "item",
        label: str = "label",
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        require_rows(type(self).__name__, rows, item)
        others = [name for name in rows if name not in (history, item)]
        self.item = Embedding(rows[item], dim)
        for name in others:
            setattr(self, f"table_{name}", Embedding(rows[name], dim))
        self.attention = MLP([4 * dim, *attention, 1], last_relu=False)
        self.top = MLP([(2 + len(others)) * dim, *top, 1], last_relu=False, dropout=dropout)
        self.features = {
            "item": features.Ids("item", column=item),
            "history": features.Sequence("item", length, column=history),
            **{name: features.Ids(f"table_{name}") for name in others},
        }
        self.labels = {label: "binary"}

    def forward(self, item: nn.Tensor, history: RaggedTensor, **others: Any) -> nn.Tensor:
        """Return the logits, (B, 1)."""
        wanted, seen = self.item(item), self.item(history)
        one, each = seen.expand(wanted), seen.values
        weights = self.attention(nn.op.concat([each, one, each - one, each * one], dim=1))
        interest = seen.replace(each * weights).sum()
        rest = [getattr(self, f"table_{name}")(ids) for name, ids in others.items()]
        return self.top(nn.op.concat([wanted, interest, *rest], dim=1))
