# SPDX-License-Identifier: Apache-2.0
"""Transformer layers over ragged sequences: attention, feed-forward, positions.

Vaswani et al. 2017, https://arxiv.org/abs/1706.03762, with a norm before each sublayer (Xiong et
al. 2020, https://arxiv.org/abs/2002.04745). Rows have no padding, so only real tokens are computed.
"""

from __future__ import annotations

from typing import Literal

from tvm.relax.frontend import nn

from sparsetrain.ad import densify
from sparsetrain.embedding import Embedding, RaggedTensor, lookup
from sparsetrain.errors import ConfigError
from sparsetrain.models.layers import Dropout, is_drawing
from sparsetrain.ops.ragged import ragged_attention
from sparsetrain.system.argument_checks import require_int


class SelfAttention(nn.Module):
    """Self-attention among the tokens of a row.

    Parameters
    ----------
    dim : int
        D, width of a token; a multiple of `heads`.
    heads : int
    causal : bool
        Whether a token attends only to itself and earlier tokens.
    dropout : float
        Dropout rate of the attention weights.
    length : int, optional
        Maximum number of tokens in a row; needed for dropout.
    """

    def __init__(
        self,
        dim: int,
        heads: int = 1,
        *,
        causal: bool = False,
        dropout: float = 0.0,
        length: int | None = None,
    ) -> None:
        if dropout and length is None:
            raise ConfigError("SelfAttention: dropout needs length=, the most tokens of a row")
        dim, heads = (
            require_int(f"SelfAttention: {name}", number)
            for name, number in (("dim", dim), ("heads", heads))
        )
        self.query, self.key, self.value = (nn.Linear(dim, dim) for _ in range(3))
        self.out = nn.Linear(dim, dim)
        self.heads, self.causal = heads, causal
        self.dropout, self.places = Dropout(dropout), heads * (length or 0)

    def forward(self, x: RaggedTensor) -> RaggedTensor:
        """(N, D) tokens -> (N, D)."""
        q, k, v = (layer(x.values)._expr for layer in (self.query, self.key, self.value))
        dropped = self.dropout.rate and is_drawing()
        factors = x.map(self._factors).values._expr if dropped else None
        seen = ragged_attention(
            q, k, v, x.ends._expr, factors, heads=self.heads, causal=self.causal
        )
        return x.replace(self.out(nn.wrap_nested(seen, "attention")))

    def _factors(self, tokens: nn.Tensor) -> nn.Tensor:
        """Return dropout factors for the attention weights, (N, heads * length)."""
        return self.dropout(nn.op.ones((tokens.shape[0], self.places), tokens.dtype))


class TransformerBlock(nn.Module):
    """Attention and a feed-forward layer, each preceded by a norm and added to its input.

    Parameters
    ----------
    dim, heads, causal
        As in `SelfAttention`.
    hidden : int, optional
        Width of the feed-forward layer; by default 4 D.
    dropout : float
        Dropout rate after both sublayers, and inside the feed-forward layer.
    length : int, optional
        Maximum number of tokens in a row; if given, dropout applies to the attention weights
        instead of the output.
    activation : {"relu", "gelu"}
    """

    def __init__(
        self,
        dim: int,
        heads: int = 1,
        *,
        hidden: int | None = None,
        causal: bool = False,
        dropout: float = 0.0,
        length: int | None = None,
        activation: Literal["relu", "gelu"] = "relu",
    ) -> None:
        if activation not in ("relu", "gelu"):
            raise ConfigError(
                f"TransformerBlock: activation must be 'relu' or 'gelu', not {activation!r}"
            )
        hidden = 4 * dim if hidden is None else require_int("TransformerBlock: hidden", hidden)
        in_attention = 0.0 if length is None else dropout
        self.attention = SelfAttention(
            dim, heads, causal=causal, dropout=in_attention, length=length
        )
        self.behind_attention = Dropout(dropout if length is None else 0.0)
        self.norms = nn.ModuleList([nn.LayerNorm(dim), nn.LayerNorm(dim)])
        self.up, self.down = nn.Linear(dim, hidden), nn.Linear(hidden, dim)
        self.dropout = Dropout(dropout)
        self.inner = Dropout(dropout, relu=activation == "relu")
        self.activation = activation

    def forward(self, x: RaggedTensor) -> RaggedTensor:
        """(N, D) tokens -> (N, D)."""
        seen = self.attention(x.map(self.norms[0])).map(self.behind_attention)
        return x.replace(x.values + seen.values).map(self._feed_forward)

    def _feed_forward(self, x: nn.Tensor) -> nn.Tensor:
        up = self.up(self.norms[1](x))
        up = self.inner(nn.op.gelu(up) if self.activation == "gelu" else up)
        return x + self.dropout(self.down(up))


class Positions(nn.Module):
    """A learnt vector for each position in a row, added to the token at that position.

    Parameters
    ----------
    length, dim : int
        Number of positions, and their width; a row has at most `length` tokens.
    from_end : bool
        Count from the last token of a row, so that the latest tokens have equal positions in all
        rows.
    """

    def __init__(self, length: int, dim: int, *, from_end: bool = False) -> None:
        self.table = Embedding(length, dim, deviation=0.02)
        self.from_end = from_end

    def forward(self, x: RaggedTensor) -> RaggedTensor:
        """(N, D) tokens -> (N, D)."""
        places = x.distances() if self.from_end else x.positions()
        table = densify(self.table.weight._expr)
        return x.replace(x.values + nn.wrap_nested(lookup(table, places._expr), "positions"))
