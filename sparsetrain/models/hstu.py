# SPDX-License-Identifier: Apache-2.0
"""HSTU: next items, by attention without a softmax and with biases by position and time."""

from __future__ import annotations

from collections.abc import Mapping

from tvm import relax
from tvm.relax import op
from tvm.relax.frontend import nn

from sparsetrain.ad import densify
from sparsetrain.embedding import Embedding, RaggedTensor, lookup
from sparsetrain.models.attention import Positions
from sparsetrain.models.features import Sequence
from sparsetrain.models.layers import Dropout
from sparsetrain.models.sasrec import SASRec
from sparsetrain.ops.ragged import ragged_silu_attention
from sparsetrain.system.argument_checks import require_int

BUCKET = 0.301  # width of a bucket of log(seconds), as in the authors' code


class HSTU(SASRec):
    """Hierarchical sequential transduction units, trained like `SASRec`.

    A block adds ``out(norm(A v) * u)`` to x, where ``u, v, q, k = silu(W norm(x))`` and, for j <=
    i, ``A_ij = silu(q_i . k_j + p_ij + b_ij) / length``: p depends on the distance between the two
    items, b on the bucket of the logarithm of the seconds between them (Zhai et al. 2024,
    https://arxiv.org/abs/2402.17152).

    Parameters
    ----------
    rows, dim, blocks, heads, length, dropout, history, item
        As in `SASRec`.
    ages : bool
        Whether to read each history item's age in seconds, as its weight, from the column
        ``history_age`` of splits of `Interactions`; otherwise b is 0.
    buckets : int
        Number of buckets for the seconds between items.
    """

    kind = "hstu"

    def __init__(
        self,
        rows: Mapping[str, int],
        dim: int = 50,
        blocks: int = 2,
        heads: int = 1,
        length: int = 50,
        dropout: float = 0.2,
        ages: bool = True,
        buckets: int = 128,
        history: str = "history",
        item: str = "item",
    ) -> None:
        super().__init__(rows, dim, 0, heads, length, dropout, history, item)
        count = require_int("HSTU: buckets", buckets) if ages else None
        layers = (HSTUBlock(dim, heads, length, count, dropout) for _ in range(blocks))
        self.positions, self.blocks = Positions(length, dim), nn.ModuleList([*layers])
        events = Sequence("item", length, weighted=ages, column=history)
        self.features = {**self.features, "history": events}


class HSTUBlock(nn.Module):
    """A block of `HSTU`; a token's weight is its age in seconds."""

    def __init__(
        self, dim: int, heads: int, length: int, buckets: int | None, dropout: float
    ) -> None:
        self.mixed, self.out = nn.Linear(dim, 4 * dim, bias=False), nn.Linear(dim, dim)
        self.norms = nn.ModuleList([nn.LayerNorm(dim), nn.LayerNorm(dim)])
        self.places = Embedding(length, 1, deviation=0.02)
        self.times = Embedding(buckets, 1, deviation=0.02) if buckets else None
        self.dropout, self.heads = Dropout(dropout), heads

    def forward(self, x: RaggedTensor) -> RaggedTensor:
        """(N, D) tokens -> (N, D)."""
        u, v, q, k = nn.op.split(nn.op.silu(self.mixed(self.norms[0](x.values))), 4, axis=1)
        arrays = (each._expr for each in (q, k, v, self.bias(x), x.ends))
        attended = ragged_silu_attention(*arrays, heads=self.heads, scale=1 / self.places.rows)
        gated = self.norms[1](nn.wrap_nested(attended, "attended")) * u
        return x.replace(x.values + self.out(x.replace(gated).map(self.dropout).values))

    def bias(self, x: RaggedTensor) -> nn.Tensor:
        """Return a bias for each token and distance, (N, length)."""
        count, length = x.values.shape[0], self.places.rows
        places = nn.op.reshape(self.places.weight, (1, length))
        if self.times is None:
            return nn.op.zeros((count, length), "float32") + places
        assert x.weights is not None
        token, distance = (op.arange(0, n, 1, "int64") for n in (count, length))
        before = op.reshape(token, (count, 1)) - op.reshape(distance, (1, length))
        ages = op.take(x.weights._expr, op.maximum(before, relax.const(0, "int64")))
        seconds = ages - op.reshape(x.weights._expr, (count, 1))
        powers = op.log(op.maximum(seconds, _number(1))) / _number(BUCKET)
        bucket = op.astype(op.minimum(powers, _number(self.times.rows - 1)), "int32")
        times = lookup(densify(self.times.weight._expr), bucket)  # (N, length, 1)
        return nn.op.reshape(nn.wrap_nested(times, "times"), (count, length)) + places


def _number(value: float) -> relax.Constant:
    return relax.const(value, "float32")
