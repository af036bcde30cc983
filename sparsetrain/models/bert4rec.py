# SPDX-License-Identifier: Apache-2.0
"""BERT4Rec: predictions of hidden items of a sequence, by attention in both directions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import numpy as np
from tvm.relax.frontend import nn

from sparsetrain.data.ragged import Ragged
from sparsetrain.embedding import Embedding, RaggedTensor
from sparsetrain.errors import ConfigError
from sparsetrain.models import losses
from sparsetrain.models.arguments import check_options
from sparsetrain.models.attention import Positions
from sparsetrain.models.draws import Draws
from sparsetrain.models.features import Places, Sequence
from sparsetrain.models.sasrec import SASRec, transformer
from sparsetrain.system.argument_checks import is_number

_SOFTMAX = {"full": losses.full_softmax, "tiled": losses.tiled_softmax}


class BERT4Rec(SASRec):
    """A bidirectional transformer, trained to predict items that a mask hides.

    The loss of a hidden item is its cross-entropy in the softmax over all items, scored with the
    input's table: ``log sum_v exp(x . v) - x . item``. The next item is predicted at a mask after
    the last item (Sun et al. 2019, https://arxiv.org/abs/1904.06690).

    Parameters
    ----------
    rows, dim, blocks, heads, history, item
        As in `SASRec`.
    length : int
        Maximum number of items in a history; the mask after them takes one more position.
    dropout : float
        Dropout rate of the input and inside the blocks.
    hidden : float
        Share of items to hide.
    softmax : {"full", "tiled"}
        "full" holds the scores of all items in memory at once; "tiled" (CPU only) computes them
        tile by tile, for a million items: see `losses.tiled_softmax`.
    """

    kind = "bert4rec"
    densify = ("item.weight",)
    prepared = {
        "history": Sequence("item"),
        "places": Places(),
        "wanted": Sequence("item", like="places"),
    }

    def __init__(
        self,
        rows: Mapping[str, int],
        dim: int = 64,
        blocks: int = 2,
        heads: int = 2,
        length: int = 50,
        dropout: float = 0.2,
        hidden: float = 0.2,
        softmax: Literal["full", "tiled"] = "full",
        history: str = "history",
        item: str = "item",
    ) -> None:
        super().__init__(rows, dim, 0, heads, length, dropout, history, item)
        if not (is_number(hidden) and 0 <= hidden < 1):
            raise ConfigError(f"BERT4Rec: hidden is {hidden!r}; it must be at least 0 and below 1")
        self.softmax = check_options(type(self), {"softmax": softmax})["softmax"]
        self.mask, self.hidden = rows[item], hidden
        self.item = Embedding(rows[item] + 1, dim, deviation=0.02)
        self.positions = Positions(length + 1, dim)
        self.blocks = transformer(blocks, dim, heads, dropout, causal=False)

    def prepare(self, features: Mapping[str, Any], draws: Draws) -> Mapping[str, Any]:
        """Hide an item with probability `hidden`, the last one of a row with probability 0.1."""
        whole = features["history"].append(features["item"])
        chosen = draws.uniform("hidden", like=whole).ids < self.hidden
        last = draws.uniform("last", like=features["item"]) < 0.1
        chosen[whole.offsets[1:][last] - 1] = True
        chosen[-1] |= not chosen.any()  # the loss needs at least one hidden item
        places = whole.where(chosen)
        shown = Ragged(np.where(chosen, self.mask, whole.ids), whole.offsets)
        return {"history": shown, "places": places, "wanted": whole.at(places)}

    def prepare_scores(self, features: Mapping[str, Any]) -> Mapping[str, Any]:
        """Append a mask to every history."""
        return {"history": features["history"].append(self.mask)}

    def vectors(self, history: RaggedTensor) -> RaggedTensor:
        """Look up the items' vectors; unlike in `SASRec` they are not scaled."""
        return self.item(history)

    def loss(  # type: ignore[override]  # called with features by name
        self, history: RaggedTensor, places: RaggedTensor, wanted: RaggedTensor
    ) -> nn.Tensor:
        """Return the mean loss over all hidden items."""
        x = self.encode(history).take(places).values
        return losses.mean(_SOFTMAX[self.softmax](x, self.item.weight, wanted.values))
