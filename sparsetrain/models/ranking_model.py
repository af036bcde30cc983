# SPDX-License-Identifier: Apache-2.0
"""`RankingModel`: base of models that learn to rank chosen items first, with a choice of losses.

The loss, the number of negatives and their distribution are options of every such model. A subclass
computes vectors; a score is a dot product, or for ``loss="ccl"`` a cosine. An item that a user
chose in the rows of `fit` is drawn again, at most twice, if it is that user's negative; negatives
shared by a batch are not checked.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
from tvm import relax
from tvm.relax import op
from tvm.relax.frontend import nn

from sparsetrain.embedding import Embedding
from sparsetrain.models import features, losses
from sparsetrain.models.arguments import check_options, require_rows
from sparsetrain.models.draws import Draws
from sparsetrain.models.features import Ids
from sparsetrain.models.initialize import constant
from sparsetrain.models.model import Model, TrainingRows

if TYPE_CHECKING:  # importing it takes time, and few models need it
    from scipy.sparse import csr_array

Loss = Literal["bpr", "softmax", "ccl", "warp", "in_batch"]
HISTORY = "history"  # column that is read if the data have it


class _Scores(NamedTuple):
    """Scores of a batch: (B,) of chosen items, (B, K) of negatives; corrections for the draws."""

    positive: nn.Tensor
    negatives: nn.Tensor
    corrections: tuple[nn.Tensor, nn.Tensor] | tuple[()]


def _bpr(model: RankingModel, scores: _Scores) -> nn.Tensor:
    column = nn.op.reshape(scores.positive, (scores.positive.shape[0], 1))
    each = losses.bpr(column, scores.negatives)
    return each if model.negatives == 1 else nn.op.sum(each, axis=1) / float(model.negatives)


# Name of a loss -> function of (model, scores) that returns the losses of the rows.
_LOSSES: dict[str, Callable[[Any, _Scores], nn.Tensor]] = {
    "bpr": _bpr,
    "softmax": lambda model, s: losses.sampled_softmax(s.positive, s.negatives, *s.corrections),
    "ccl": lambda model, s: losses.cosine_contrastive(
        s.positive, s.negatives, model.margin, model.negative_weight
    ),
    "warp": lambda model, s: losses.warp(s.positive, s.negatives, len(model.item_range())),
}


class RankingModel(Model):
    """Base of models with a loss that compares a chosen item with negatives.

    Parameters
    ----------
    loss : {"bpr", "softmax", "ccl", "warp", "in_batch"}
        Pairwise loss (Rendle et al. 2009), a softmax over the item and the negatives, the cosine
        contrastive loss (Mao et al. 2021), the WARP loss on approximate ranks (Weston et al. 2011),
        or a softmax over the items of the batch, which needs no negatives.
    negatives : int
        Number of negatives drawn for each row.
    shared : bool
        Whether all rows of a batch share the same negatives, which makes many negatives cheap.
    popularity : float
        Items are drawn with probability proportional to their count to this power; 0 is uniform.
        The softmax corrects for it.
    decay : float
        Factor of `losses.squares_of_rows`, applied to the rows that a batch reads.
    margin : float
        For "ccl": negatives with a cosine below it do not contribute.
    negative_weight : int
        For "ccl": the weight of the mean over the negatives.
    """

    _options_of_all = frozenset(
        ("loss", "negatives", "shared", "popularity", "decay", "margin", "negative_weight")
    )
    target = "item"
    training_rows: TrainingRows = "item"

    def __init__(
        self,
        *,
        loss: Loss = "bpr",
        negatives: int = 1,
        shared: bool = False,
        popularity: float = 0.0,
        decay: float = 0.0,
        margin: float = 0.4,
        negative_weight: int = 150,
    ) -> None:
        super().__init__()
        given = {"loss": loss, "negatives": negatives, "shared": shared, "popularity": popularity}
        given |= {"decay": decay, "margin": margin, "negative_weight": negative_weight}
        check_options(type(self), given)
        self.loss_name, self.negatives, self.shared = loss, negatives, shared
        self.popularity, self.decay = popularity, decay
        self.margin, self.negative_weight = margin, negative_weight
        self._pairs = np.empty(0, np.int64)  # user * items + item, for all chosen pairs
        self._chances: np.ndarray | None = None  # cumulative, of the items
        if loss != "in_batch":
            count = negatives if shared or negatives > 1 else None
            self.prepared = {"negative": Ids("item", count, shared=shared)}

    def _read_pairs(
        self,
        rows: Mapping[str, int],
        dim: int,
        user: str,
        item: str,
        history: str | None,
        deviation: float,
    ) -> None:
        """Make the tables of users and items, and declare both and any history as features."""
        require_rows(type(self).__name__, rows, user, item)
        self.user, self.item = (Embedding(rows[c], dim, deviation=deviation) for c in (user, item))
        self.features = {"user": Ids("user", column=user), "item": Ids("item", column=item)}
        if history is not None and (history in rows or history != HISTORY):
            self.features["history"] = features.Sequence("item", column=history)
            self.seen = "history"

    def _table_of_chances(self, items: int) -> None:
        """Add a constant with the logarithms of the items' probabilities, if the loss needs it."""
        if self.popularity and self.loss_name == "softmax":
            self.log_chances = constant((items,), "float32")

    # --- Negatives ----------------------------------------------------------------------------

    @property
    def learns(self) -> bool:
        """As in `Model`; False if the negatives are the batch's own items."""
        return bool(self.prepared or self.constants())

    def learn(self, chosen: csr_array) -> Mapping[str, np.ndarray]:
        """Store the pairs of user and chosen item, and how often each item was chosen."""
        users = np.repeat(np.arange(chosen.shape[0]), np.diff(chosen.indptr))
        self._pairs = np.sort(users * np.int64(chosen.shape[1]) + chosen.indices)
        if not self.popularity:
            return {}
        items = self.item_range()
        counts = np.zeros(chosen.shape[1])
        own = slice(items.start, items.stop)
        counts[own] = np.maximum(np.bincount(chosen.indices, minlength=chosen.shape[1])[own], 1)
        weights = counts**self.popularity
        chances = weights / weights.sum()
        self._chances = np.cumsum(chances) / chances.sum()
        with np.errstate(divide="ignore"):
            logs = np.maximum(np.log(chances), -60.0)
        return {"log_chances": logs.astype(np.float32)} if hasattr(self, "log_chances") else {}

    def prepare(self, features: Mapping[str, Any], draws: Draws) -> Mapping[str, Any]:
        """Draw the negatives; redraw one that the row's user has chosen, at most twice."""
        if "negative" not in self.prepared:
            return {}
        item = features["item"]
        if self.shared:
            like = np.empty((1, self.negatives))
            return {"negative": self._drawn("negative", draws.of_batch, like)[0]}
        like = item if self.negatives == 1 else np.empty((len(item), self.negatives))
        drawn = self._drawn("negative", draws, like)
        if (is_known := self._known(features)) is not None:
            for attempt in ("second", "third"):
                hit = is_known(drawn)
                drawn[hit] = self._drawn(f"{attempt} negative", draws, like)[hit]
        return {"negative": drawn}

    def _drawn(self, name: str, draws: Draws, like: np.ndarray) -> np.ndarray:
        if self._chances is not None:
            return draws.by_chance(name, self._chances, like)
        ids = self.item_range()
        return draws.integers(name, ids.stop, like, ids.start)

    def _known(self, features: Mapping[str, Any]) -> Callable[[np.ndarray], np.ndarray] | None:
        """Return a function that tests, for ids (B, ...), whether the row's user chose them."""
        items, history = self.rows_of(self.features["item"]), features.get("history")
        if len(self._pairs):
            pairs, owner = self._pairs, features["user"]
        elif history is not None:
            pairs, owner = np.sort(history.rows() * items + history.ids), np.arange(len(history))
        else:
            return None

        def among(drawn: np.ndarray) -> np.ndarray:
            keys = owner.reshape(-1, *[1] * (drawn.ndim - 1)) * items + drawn
            place = np.minimum(np.searchsorted(pairs, keys), len(pairs) - 1)
            return pairs[place] == keys if len(pairs) else np.zeros(drawn.shape, bool)

        return among

    # --- Loss ---------------------------------------------------------------------------------

    def compared(
        self,
        ids: Sequence[nn.Tensor],
        query: nn.Tensor,
        item: nn.Tensor,
        negative: nn.Tensor | None = None,
    ) -> nn.Tensor:
        """Return the loss for vectors of queries (B, D), chosen items (B, D) and negatives.

        `ids` are the chosen items' ids, then the negatives' ids if there are any.
        """
        query, item = self.scored(query), self.scored(item)
        if negative is None:
            first = self.item_range().start
            return losses.mean(losses.in_batch_softmax(query, item, ids=ids[0], items_from=first))
        others, (rows, width) = self.scored(negative), query.shape
        if self.shared:
            negatives = nn.op.matmul(query, nn.op.permute_dims(others, [1, 0]))  # (B, K)
        else:
            others = nn.op.reshape(others, (rows, self.negatives, width))
            negatives = nn.op.sum(nn.op.reshape(query, (rows, 1, width)) * others, axis=-1)
        positive = nn.op.sum(query * item, axis=-1)
        scores = _Scores(positive, negatives, self._corrections(rows, *ids))
        return losses.mean(_LOSSES[self.loss_name](self, scores))

    def with_decay(self, loss: nn.Tensor, *vectors: nn.Tensor) -> nn.Tensor:
        """Return the loss plus the decay of these table rows; the first tensor is (B, D)."""
        return loss + losses.squares_of_rows(*vectors) * self.decay if self.decay else loss

    def scored(self, vectors: nn.Tensor) -> nn.Tensor:
        """Return vectors (..., D) ready to be multiplied for scores: normalized for cosines."""
        if self.loss_name != "ccl":
            return vectors
        squares = nn.op.sum(vectors * vectors, axis=-1, keepdims=True)
        tiny = relax.const(1e-12, vectors.dtype)
        root = op.sqrt(nn.wrap_nested(op.add(squares._expr, tiny), "squares")._expr)
        return vectors / nn.wrap_nested(root, "length")

    def _corrections(self, rows: Any, *ids: nn.Tensor) -> Any:
        """Return log sampling probabilities of items and negatives, if the softmax needs them."""
        if not hasattr(self, "log_chances"):
            return ()
        table = self.log_chances._expr
        own, drawn = (nn.wrap_nested(op.take(table, n._expr, axis=0), "log_chances") for n in ids)
        return own, nn.op.reshape(drawn, (1 if self.shared else rows, self.negatives))
